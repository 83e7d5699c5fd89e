package owned

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

var _ outbox.Store = (*Store)(nil)

// Options are the options of a Store. The zero value is good.
type Options struct {
	// Now is the store's clock; nil = time.Now.
	Now func() time.Time
	// KeepPublished keeps published records. Else they are deleted with their settle.
	KeepPublished bool
}

// Store is an outbox in memory.
type Store struct {
	opts Options
	born time.Time // the origin of what the indexes by time count

	mu       sync.Mutex
	seq      int64 // the last sequence that was drawn
	mark     int64 // the last mark that was drawn
	told     int64 // the number of the last control record
	restores int
	routes   map[string]*route
	members  map[outbox.Session]*member
	control  []*outbox.Control // by number
	running  []*Tx             // open ones that have a mark, by mark
	open     map[*Tx]struct{}
}

// member is a member and what it holds.
type member struct {
	outbox.Member
	held   map[*record]struct{}
	gaveUp map[outbox.Unit]bool // units that it gave up, and did not take again
}

// New returns an empty Store.
func New(opts Options) *Store {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Store{
		opts: opts, born: opts.Now().Round(0), routes: map[string]*route{}, members: map[outbox.Session]*member{}, open: map[*Tx]struct{}{},
	}
}

// Traits declares exact marks and a fence by session; nothing is durable or shared with other processes.
func (s *Store) Traits() outbox.Traits { return outbox.Traits{SessionFence: true} }

// now is without a monotonic part: one time line with the times that messages carry.
func (s *Store) now() time.Time { return s.opts.Now().Round(0) }

// at is a time as the indexes by time count it.
func (s *Store) at(t time.Time) int64 { return int64(t.Sub(s.born)) }

func (s *Store) epoch() string { return strconv.Itoa(s.restores + 1) }

// names returns the names of the routes in order.
func (s *Store) names() []string { return slices.Sorted(maps.Keys(s.routes)) }

// owned returns the slots of the route that self owns.
func (rt *route) owned(self outbox.Session) outbox.Slots {
	var own outbox.Slots
	for _, u := range rt.units {
		if u.Owner == self && self != 0 {
			own |= u.Unit.Slots()
		}
	}
	return own
}

// merge joins the parts of each route into one, in the order in which routes are first named.
func merge(parts []outbox.Part) []outbox.Part {
	var out []outbox.Part
	for _, p := range parts {
		i := slices.IndexFunc(out, func(q outbox.Part) bool { return q.Route == p.Route })
		if i < 0 {
			out = append(out, p)
		} else {
			out[i].Slots |= p.Slots
		}
	}
	return out
}

func outage(op string, err error) error {
	return &core.Error{Op: "waybill/memory: " + op, Class: core.ClassOutage, Err: err}
}

func fenced(op string, self outbox.Session) error {
	return fmt.Errorf("waybill/memory: %s: session %d is not a member: join under a new one: %w", op, self, outbox.ErrFenced)
}
