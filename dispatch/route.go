package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A route is everything that the member knows about one route: its partitions and reading places (groups), the records
// in memory (known, ready, wants, suspects), keys, and paused topics. No two routes share a bound of memory, so a route
// that is slow or blocked takes no place from another.

// queueDepth is how many windows of records may wait behind their keys in memory. Beyond it the front only notes where
// a key goes on. From half of it on nothing is read while a quarter of the window is out or ready: records read then
// could not go sooner.
const queueDepth = 8

// readWorth: a relay reads when a quarter of the window is free.
const readWorth = 4

// route is what the member knows about a route. A member that joins again begins with new ones.
type route struct {
	*env
	Route
	partitions    map[core.Partition]*partition
	releasing     core.Slots           // slots of partitions to be released
	uncertainUpTo [core.NumSlots]int64 // by slot: records up to here may have been out at a dead member
	// records that were out without a result, unknown to the store, and their slots
	unreported map[int64]uint8
	groups     []*group
	pace       pace

	known    map[int64]*Item // by sequence: all items in memory, in every state
	load     load
	suspects suspects
	ready    []*Item // to be handed out, in order
	wants    []*Item // to be held before they are handed out
	recent   recent
	revisits revisits

	remembered
	queue   queue
	topics  topics
	overdue overdue
	shut    bool // nothing is handed out for now
}

// remembered are the keys of a route that something is known of.
type remembered struct {
	keys   map[string]*key
	toRead []*key // keys whose next page must be read, in this order; key.listed
	deep   []*key // keys of which many records were passed
}

// load counts a route's items in memory. It is kept in step with known.
type load struct {
	// inWindow counts items beyond their key queue, without the locked ones: they take places of Options.Window.
	inWindow int
	locked   int   // items whose outcome waits for the lock of another transaction; they take no place
	queued   int   // items in key queues
	bytes    int64 // the bodies of all items in memory
	body     int64 // about the size of a body: a moving mean; 0 = none is known
}

// bodyParts makes the mean one of the latest some dozens of bodies.
const bodyParts = 32

// keep counts an item.
func (l *load) keep(item *Item) {
	size := int64(len(item.Record.Envelope.Body))
	if l.bytes += size; l.body == 0 {
		l.body = max(size, 1)
	}
	l.body = max(l.body+(size-l.body)/bodyParts, 1)
}

// pace says when a route is read.
type pace struct {
	idle    int       // empty reads in a row
	readAt  time.Time // when to read it next
	askedAt time.Time // when the latest read of the route was sent
	more    bool      // the latest read left something
	again   bool      // there was news since the latest read was sent
}

// wake makes sure that the route is read at once, or as soon as a read that is under way, and may not see the news, has
// ended.
func (p *pace) wake(now time.Time) { p.readAt, p.idle, p.again = now, 0, true }

// recent are the records that were settled while a call was under way, whose answer may show an old state of them. It
// is empty when a call begins.
type recent struct {
	read map[int64]bool
	due  map[int64]int64 // the version before it was settled
}

// newRoute returns a route that owns nothing.
func newRoute(e *env, r Route) *route {
	return &route{
		env: e, Route: r, partitions: map[core.Partition]*partition{}, known: map[int64]*Item{}, remembered: remembered{keys: map[string]*key{}},
		revisits: revisits{bySeq: map[int64]*revisit{}, tries: map[int64]int{}}, suspects: suspects{env: e}, unreported: map[int64]uint8{},
		recent: recent{map[int64]bool{}, map[int64]int64{}}, topics: newTopics(), queue: queue{progress: newProgress()}, overdue: overdue{env: e},
	}
}

// ordered reports whether records of the route wait for earlier ones of their key.
func (rt *route) ordered() bool { return rt.Order == waybill.OrderPerKey }

// forAnyMember reports whether a record with this key may go to any member.
func (rt *route) forAnyMember(key string) bool { return rt.Queue && key == "" }

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

// isReleasing reports whether the slot belongs to a partition that is being released.
func (rt *route) isReleasing(slot uint8) bool { return rt.releasing.Has(slot) }

// unresolved reports whether records may still appear behind a cursor.
func (rt *route) unresolved() bool { return slices.ContainsFunc(rt.groups, (*group).unresolved) }

// room is how many more records may be read. There is none above the limit of bytes, or while so many records wait in
// key queues that a record read now could not go soon. A relay waits until a part of the window is free: a read of few
// records takes as many round trips as one of many.
func (rt *route) room() int {
	if rt.load.bytes >= rt.opts.Bytes {
		return 0
	}
	if rt.load.inWindow >= (rt.opts.Window+3)/4 && rt.load.queued >= rt.queueDepth*rt.opts.Window/2 {
		return 0
	}
	room := rt.opts.Window - rt.load.inWindow
	if !rt.Queue && room < rt.opts.Window/readWorth {
		return 0
	}
	return room
}

// fit returns for how many records there is room if each has two bodies of the usual size; at least one. Without a
// known size the answer is unknown. It bounds what stores do not bound by bytes: due retries, and the pages of many
// keys together.
func (rt *route) fit(unknown int) int {
	if rt.load.body == 0 {
		return unknown
	}
	return int(max((rt.opts.Bytes-rt.load.bytes)/(2*rt.load.body), 1))
}

// crowded reports whether the front and the walks wait, because so many keys are about to be read. These do not wait
// for anything, so there will be fewer.
func (rt *route) crowded() bool {
	return rt.asking() >= rt.askMost || len(rt.keys) >= rt.opts.MaxKeys+(rt.queueDepth+1)*rt.opts.Window
}

// asking is the number of keys whose holders are to be asked of the store.
func (rt *route) asking() (n int) {
	for _, k := range rt.toRead {
		if k.asks && !k.slow {
			n++
		}
	}
	return n
}

// room reports whether more records of any route may be read.
func (d *Dispatcher) room() bool {
	return slices.ContainsFunc(d.routes, func(rt *route) bool { return rt.room() > 0 })
}

// letGo takes an item out of the count of those beyond their key's queue.
func (rt *route) letGo(item *Item) {
	if item.locked {
		item.locked = false
		rt.load.locked--
	} else {
		rt.load.inWindow--
	}
}

// lock notes that the outcome of an item waits for a lock. Others need its place. So do those of the next crash window:
// the item has not killed the member.
func (rt *route) lock(item *Item) {
	item.locked = true
	rt.suspects.crashWindow = without(rt.suspects.crashWindow, item)
	rt.load.locked++
	rt.load.inWindow--
}

// holdsFirst reports whether many outcomes wait for locks. Then every record is held before it is handed out: one that
// is locked is not handed out at all, and takes no memory.
func (rt *route) holdsFirst() bool { return 2*rt.load.locked >= rt.opts.Window }

// knownIn returns the sequences in (from, to] that are in memory.
func (rt *route) knownIn(g *group, from, to int64) (seqs []int64) {
	for seq, item := range rt.known {
		if seq > from && seq <= to && g.slots.Has(item.Record.Slot) {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs
}

// knownSlots returns the slots with items in memory.
func (rt *route) knownSlots() (s core.Slots) {
	for _, item := range rt.known {
		s |= 1 << item.Record.Slot
	}
	return s
}

// newItem makes an item of a record.
func (rt *route) newItem(rec *core.Record) *Item {
	item := &Item{Record: *rec, session: rt.session, route: rt, held: rec.HeldBy != 0 && rec.HeldBy == rt.session}
	item.ends = rt.expiresAt(rec)
	_, unreported := rt.unreported[rec.Seq]
	item.tries = rt.revisits.tries[rec.Seq]
	delete(rt.revisits.tries, rec.Seq)
	// it may have been out at a dead member
	item.unknown = unreported || !rt.Queue && rec.Seq <= rt.uncertainUpTo[rec.Slot]
	rt.keep(item)
	return item
}

// keep counts an item among those in memory.
func (rt *route) keep(item *Item) {
	rt.known[item.Record.Seq] = item
	rt.load.keep(item)
}

// discard undoes keep.
func (rt *route) discard(item *Item) {
	delete(rt.known, item.Record.Seq)
	rt.load.bytes -= int64(len(item.Record.Envelope.Body))
	if item.again || item.retry && !item.stored {
		rt.overdue.forget()
	}
	if rt.forAnyMember(item.Record.Envelope.Key) && !item.stored {
		rt.queue.progress.pass(item.Record.Seq)
	}
}

// sortedSeqs returns the sequences that are keys of m, in order.
func sortedSeqs[V any](m map[int64]V) []int64 {
	seqs := make([]int64, 0, len(m))
	for seq := range m {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	return seqs
}
