package memory

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

var (
	_ core.OutboxStore    = (*Store)(nil)
	_ waybill.Stager[*Tx] = (*Store)(nil)
	_ core.Inbox[*Tx]     = (*Store)(nil)
	_ core.Checker        = (*Store)(nil)
)

// Options configures a Store.
type Options struct {
	// Source is the CloudEvents source of messages that name none, such as "/orders". Required.
	Source string
	// Retention says how long settled records are kept. By default the settle itself deletes published ones;
	// [Store.Clean] deletes all others.
	Retention waybill.Retention
	// Clock gives the HLC stamps; nil means a clock of its own.
	Clock *hlc.Clock
	// Limits bounds what can be staged.
	Limits waybill.Limits
	// TTL is the total time of messages that set neither TTL nor Expires; 0 = none.
	TTL time.Duration
	// RouteTTL is TTL for the messages on a route, instead of it; negative = none. The lanes and sub-routes of a
	// route have its time.
	RouteTTL map[string]time.Duration
	// Cancellable lists routes. Every message on them can be cancelled although it is due; see waybill.Message.
	Cancellable []string
	// Now is the clock of the store and of the producer; nil means time.Now, which is virtual under
	// testing/synctest. It must be safe for concurrent use. Wait uses real timers in any case.
	Now func() time.Time
	// TracerProvider makes the stage spans; nil means the global one.
	TracerProvider core.TracerProvider
}

// Store is an outbox, an inbox and a table of strings in memory. It is safe for concurrent use.
type Store struct {
	stamper   *core.Stamper
	now       func() time.Time // without a monotonic part: one time line with the times that messages carry
	born      time.Time        // the origin of the indexes by time
	retention waybill.Retention
	bounds    waybill.Limits

	mu       sync.Mutex // never held while anything waits
	audit    []audit.Entry
	seq      int64 // the last sequence that was drawn
	lastTx   int64 // the last transaction id that was drawn
	told     int64 // the number of the last notice
	restores int
	routes   map[string]*route
	holders  map[liveKey]*record // live records with a dedupe key
	members  map[core.Session]*member
	notice   []*command // by number
	running  []*Tx      // open ones that have an id, by id
	open     map[*Tx]struct{}
	locks    map[any]*Tx // dedupe keys, inbox keys and cancelled ids that an open transaction works with
	values   map[string]string
	inbox    inboxMarks
	cleaner  election
	limits   limits
	stamp    hlc.Timestamp // the highest of a record that was committed
	changes  uint64        // how often something changed for which somebody can wait
	signal   chan struct{} // closed and replaced when somebody listens and a route's version or timers change
	listened bool
}

// member is a member and the records it holds.
type member struct {
	core.Member
	renewed time.Time
	held    map[*record]struct{}
	seen    map[string]uint64 // the versions of routes when it last looked
}

func newMember(m core.Member) *member {
	m.Routes = slices.Clone(m.Routes)
	return &member{Member: m, held: map[*record]struct{}{}, seen: map[string]uint64{}}
}

// New returns an empty store, or an error that lists all problems of opts.
func New(opts Options) (*Store, error) {
	stamper, err := core.NewStamper(core.StamperOptions{
		Source: opts.Source, Clock: opts.Clock, Limits: opts.Limits, TTL: opts.TTL, RouteTTL: opts.RouteTTL, Now: opts.Now,
		TracerProvider: opts.TracerProvider, Cancellable: opts.Cancellable,
	})
	if err != nil {
		return nil, err
	}
	now := opts.Now
	if now == nil {
		now = time.Now
	}
	wall := func() time.Time { return now().Round(0) }
	return &Store{
		stamper: stamper, now: wall, born: wall(), retention: opts.Retention, bounds: opts.Limits,
		routes: map[string]*route{}, holders: map[liveKey]*record{}, members: map[core.Session]*member{}, open: map[*Tx]struct{}{},
		locks: map[any]*Tx{}, values: map[string]string{}, inbox: newInboxMarks(), signal: make(chan struct{}),
	}, nil
}

// Traits declares exact transaction ids and a fence by session; nothing is durable or shared with other processes.
func (s *Store) Traits() core.StoreTraits { return core.StoreTraits{SessionFence: true} }

// Check returns nil unless ctx has ended: there is nothing outside of the process to check.
func (s *Store) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return outage("check", err)
	}
	return nil
}

// at returns a time in the unit of the indexes by time.
func (s *Store) at(t time.Time) int64 { return int64(t.Sub(s.born)) }

func (s *Store) epoch() string { return strconv.Itoa(s.restores + 1) }

// names returns the names of the routes in order.
func (s *Store) names() []string { return slices.Sorted(maps.Keys(s.routes)) }

// owned returns the slots of the route that self owns.
func (rt *route) owned(self core.Session) core.Slots {
	var own core.Slots
	for _, u := range rt.partitions {
		if u.Owner == self && self != 0 {
			own |= u.Partition.Slots()
		}
	}
	return own
}

// merge joins the parts of each route into one, in the order in which routes are first named.
func merge(parts []core.RouteSlots) []core.RouteSlots {
	var out []core.RouteSlots
	for _, p := range parts {
		i := slices.IndexFunc(out, func(q core.RouteSlots) bool { return q.Route == p.Route })
		if i < 0 {
			out = append(out, p)
		} else {
			out[i].Slots |= p.Slots
			if out[i].MaxOverdue = max(out[i].MaxOverdue, p.MaxOverdue); p.MaxOverdue == 0 {
				out[i].MaxOverdue = 0
			}
			out[i].DueExcludeHeld = out[i].DueExcludeHeld && p.DueExcludeHeld
		}
	}
	return out
}

func outage(op string, err error) error {
	return &waybill.Error{Op: "waybill/memory: " + op, Class: waybill.ClassOutage, Err: err}
}
