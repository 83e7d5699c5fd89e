package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// route is what the member knows of a route.
type route struct {
	Route
	units   map[core.Unit]*unit
	leaving core.Slots // of units that are to be given up
	groups  []*group
	known   map[int64]*Item // by sequence: all that is in memory
	keys    map[string]*key
	// recent are records that were settled after the read under way was sent, and recentDue the same for Due.
	recent, recentDue map[int64]bool
	careful           [core.NumSlots]int64 // what is up to it may have been out at a member that died
	again             map[int64]*revisit

	ready  []*Item // to be handed out, in order
	wants  []*Item // to be held first
	toRead []*key  // keys whose next page is to be read
	held   int     // items beyond their key's queue
	queued int     // items in queues
	bytes  int64

	queue  queue
	passed map[string]int64 // by blocked topic: the first sequence of a record without a key that was passed
	topics map[string]bool  // blocked ones
	shut   bool             // nothing of it is handed out for now

	idle     int // reads in a row that found nothing
	readAt   time.Time
	lookedAt time.Time
	more     bool // the latest read left something
}

// unit is what the member owns of a route.
type unit struct {
	core.Unit
	route   *route
	term    int64
	leaving bool      // to be given up
	asked   bool      // a give-up is under way
	unsure  bool      // the answer to a give-up was lost: it may still be carried out
	tryAt   time.Time // not before
	low     int64     // the greatest hint that may be stored
}

// careful is up to where a member that died may have had its records out; 0 = nowhere.
func (u *unit) careful() (care int64) {
	for s := u.From; s < u.To; s++ {
		care = max(care, u.route.careful[s])
	}
	return care
}

// minds reports whether a control record of its route concerns it.
func (u *unit) minds(c *core.Control) bool {
	return c.Kind == core.ControlFrom || u.Slots().Has(c.Slot)
}

// revisit is a record that another session holds, or that was locked: it is read again.
type revisit struct {
	ref  core.Ref
	slot uint8
	key  string
	at   time.Time
	// decision is an operator's, if that is why.
	decision *core.Control
}

// Item is a record on its way.
type Item struct {
	// Record is what is handed out. It is not changed.
	Record core.Record
	// Suspect: it may be what killed a member.
	Suspect bool

	session core.Session
	route   *route
	key     *key // nil if it is handed out without regard to others
	state   itemState
	held    bool // a hold of this session is written
	retry   bool // Due answered it
	lost    bool // of an ended session, or of a unit that is another's
	alone   bool // the only one that may be out
	// unknown: it was out before, and may have arrived.
	unknown bool
	recheck bool // somebody changed it while its outcome was on the way
	tries   int
	at      time.Time // when it was handed out, or is to be tried again

	outcome  core.Outcome
	decision *core.Control // an operator's, to be carried out when it is not out
}

type itemState uint8

const (
	itemQueued   itemState = iota // behind others of its key
	itemSuspect                   // waits for a window
	itemWanting                   // waits for its hold
	itemReady                     // to be handed out
	itemOut                       // handed out
	itemSettling                  // concluded
)

// Route returns the name of its route.
func (it *Item) Route() string { return it.route.Name }

// Lost reports that its session has ended, or that its unit is another's: nothing more should be done with it.
func (it *Item) Lost() bool { return it.lost }

func newRoute(r Route) *route {
	return &route{
		Route: r, units: map[core.Unit]*unit{}, known: map[int64]*Item{}, keys: map[string]*key{}, recent: map[int64]bool{}, recentDue: map[int64]bool{},
		again: map[int64]*revisit{}, passed: map[string]int64{}, topics: map[string]bool{},
	}
}

// slots returns the slots that the member owns and has loaded, without those it is giving up.
func (rt *route) slots() (s core.Slots) {
	for _, g := range rt.groups {
		if g.loaded {
			s |= g.slots
		}
	}
	return s
}

// owned returns all slots that the member owns.
func (rt *route) owned() (s core.Slots) {
	for _, g := range rt.groups {
		s |= g.slots
	}
	return s
}

// groupOf returns the group that reads a slot, or nil.
func (rt *route) groupOf(slot uint8) *group {
	for _, g := range rt.groups {
		if g.slots.Has(slot) {
			return g
		}
	}
	return nil
}

// isLeaving reports whether the slot belongs to a unit that is being given up.
func (rt *route) isLeaving(slot uint8) bool { return rt.leaving.Has(slot) }

// room is how many more records may be read.
func (d *Dispatcher) routeRoom(rt *route) int {
	if rt.bytes >= d.opts.Bytes || len(rt.keys) >= d.opts.MaxKeys {
		return 0
	}
	if rt.held >= (d.opts.Window+1)/2 && rt.queued >= queueDepth*d.opts.Window/2 {
		return 0
	}
	return d.opts.Window - rt.held
}

func (d *Dispatcher) room() bool {
	return slices.ContainsFunc(d.routes, func(rt *route) bool { return d.routeRoom(rt) > 0 })
}

// drop forgets slots that are no longer the member's. What is out stays out: its hold, if it has one, lets it settle.
func (d *Dispatcher) drop(rt *route, slots core.Slots) {
	rt.leaving &^= slots
	for u := range rt.units {
		if u.Slots()&slots != 0 {
			delete(rt.units, u)
			d.lost[u] = d.now
		}
	}
	for _, g := range rt.groups {
		g.slots &^= slots
	}
	rt.groups = slices.DeleteFunc(rt.groups, func(g *group) bool { return g.slots == 0 })
	for _, seq := range sortedSeqs(rt.known) {
		it := rt.known[seq]
		if !slots.Has(it.Record.Slot) || it.state == itemOut || it.state == itemSettling {
			continue
		}
		it.lost = true
		d.remove(it)
	}
	for name, k := range rt.keys {
		if slots.Has(k.slot) {
			delete(rt.keys, name)
			k.gone = true
			for _, it := range rt.known {
				if it.key == k {
					it.key = nil
				}
			}
		}
	}
	rt.toRead = slices.DeleteFunc(rt.toRead, func(k *key) bool { return k.gone })
	for seq, r := range rt.again {
		if slots.Has(r.slot) {
			if r.decision != nil { // the next owner's
				delete(d.heeding, r.decision.Number)
			}
			delete(rt.again, seq)
		}
	}
	for s := range uint8(core.NumSlots) {
		if slots.Has(s) {
			rt.careful[s] = 0
		}
	}
}

func sortedSeqs[V any](m map[int64]V) []int64 {
	seqs := make([]int64, 0, len(m))
	for seq := range m {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	return seqs
}

// finish takes it out of memory for good: what a call under way says of it is old.
func (d *Dispatcher) finish(it *Item) {
	if d.reading != nil {
		it.route.recent[it.Record.Seq] = true
	}
	if d.dueing != nil {
		it.route.recentDue[it.Record.Seq] = true
	}
	d.remove(it)
}

// remove takes it out of memory, whatever its state is. Its key stays.
func (d *Dispatcher) remove(it *Item) {
	rt, seq := it.route, it.Record.Seq
	if rt.known[seq] != it {
		return
	}
	delete(rt.known, seq)
	rt.bytes -= int64(len(it.Record.Envelope.Body))
	isIt := func(o *Item) bool { return o == it }
	switch it.state {
	case itemQueued:
		rt.queued--
		if it.key != nil {
			it.key.queue = slices.DeleteFunc(it.key.queue, isIt)
		}
		return
	case itemSuspect:
		d.suspects = slices.DeleteFunc(d.suspects, isIt)
	case itemWanting:
		rt.wants = slices.DeleteFunc(rt.wants, isIt)
		d.window = slices.DeleteFunc(d.window, isIt)
	case itemReady:
		rt.ready = slices.DeleteFunc(rt.ready, isIt)
		d.window = slices.DeleteFunc(d.window, isIt)
	case itemOut:
		d.out--
		d.window = slices.DeleteFunc(d.window, isIt)
	case itemSettling:
		d.window = slices.DeleteFunc(d.window, isIt)
	}
	rt.held--
	if it.key != nil && it.state != itemSettling {
		it.key.busy--
	}
}
