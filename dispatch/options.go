package dispatch

import (
	"cmp"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Options configures a Dispatcher. Zero fields mean their defaults.
type Options struct {
	// Name is the member's name, for people.
	Name string
	// NewSession returns a random number above 0; it is called at each join.
	NewSession func() core.Session
	// Routes to serve. A member without any owns nothing, and only removes members that are dead.
	Routes []Route
	// Lease is how long a member may be silent before the others take its partitions; default 10 s. It is renewed
	// every third of it.
	Lease time.Duration
	// Window bounds the records that are ready or out, of one route; default 2,000. Batch bounds those of one read;
	// default 500.
	Window, Batch int
	// Bytes bounds the bodies in memory of one route; default 64 MiB. The ranges of a read may each bring a quarter
	// more. Due retries, and pages of keys, are bounded by the usual size of a body.
	Bytes int64
	// MaxKeys bounds the keys of a route that are remembered because they wait; default 100,000. The store is asked
	// about others.
	MaxKeys int
	// PollMin and PollMax bound the pause between reads that find nothing; defaults 2 ms and 1 s.
	PollMin, PollMax time.Duration
	// Gather is how long an outcome without a waiting caller may wait for others; default 10 ms, negative = not at
	// all.
	Gather time.Duration
	// ReadEvery, if not 0, makes reads few: after a read that had records all routes are read again when it has
	// passed, without a Wake, and none sooner, unless there was more to read. Outcomes wait for Gather also when no
	// more are out.
	ReadEvery time.Duration
	// LivesFrom is the time from which the lives of records count, if the store of the calls says so; zero: from
	// when their answer is taken in.
	LivesFrom time.Time
	// Handlers is how many records a table queue can have out; 0 for a relay.
	Handlers int
	// Settled, if not nil, is called from Done when the result of a concluded item is known: with nil if its
	// outcome was stored. It is also called when an item that is out is lost with its session. With core.ErrLocked
	// it says once that a transaction has locked the record: the outcome is sent again, and its result follows. It
	// must not call the Dispatcher.
	Settled func(item *Item, err error)
}

// Route is a route to serve.
type Route struct {
	Name string
	// Order is how its records are handed out. Only OrderPerKey heeds keys.
	Order waybill.Order
	// Blocks: an abandoned record blocks its key until an operator decides.
	Blocks bool
	// Partitions is how many partitions the route has, if this member is the first to serve it; default 64.
	Partitions int
	// Pipelined is how many records of a key may be out at once; default 1. The user of the Dispatcher must release
	// the records behind a failed one.
	Pipelined int
	// Hold: every record is held before it is handed out.
	Hold bool
	// Queue: handlers of many processes work on it. Records with a key go by owner. Records without one go to any
	// member with a free handler. Every record is held before it is handed out. The member says with SetFree how
	// many handlers are free.
	Queue bool
}

// usualGather is the default of Options.Gather.
const usualGather = 10 * time.Millisecond

// withDefaults returns o with the defaults set.
func (o Options) withDefaults() Options {
	o.Lease = cmp.Or(o.Lease, 10*time.Second)
	o.Window = cmp.Or(o.Window, 2000)
	o.Batch = cmp.Or(o.Batch, 500)
	o.Bytes = cmp.Or(o.Bytes, 64<<20)
	o.MaxKeys = cmp.Or(o.MaxKeys, 100_000)
	o.PollMin = cmp.Or(o.PollMin, 2*time.Millisecond)
	o.PollMax = cmp.Or(o.PollMax, time.Second)
	o.Gather = max(cmp.Or(o.Gather, usualGather), 0)
	routes := make([]Route, len(o.Routes))
	for i, r := range o.Routes {
		r.Name = cmp.Or(r.Name, waybill.DefaultRoute)
		r.Partitions = cmp.Or(r.Partitions, core.NumSlots)
		r.Pipelined = cmp.Or(r.Pipelined, 1)
		r.Hold = r.Hold || r.Queue
		routes[i] = r
	}
	o.Routes = routes
	return o
}
