package dispatch

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A key hands out its records in the order of their numbers, each after the one before was concluded. Most keys need no
// memory for that. A key is remembered while it has items, or while it waits for one of these:
//
//   field        | the key waits for                            | it goes on
//   -------------|----------------------------------------------|------------------------------------------------
//   busy         | items that are out, or on their way out      | when they are concluded
//   unstored     | outcomes that block it until they are stored | when the settle is answered
//   blockers     | stored records: a retry, an abandoned one,   | by a Due, by a notice,
//                | one that is held elsewhere or locked         | by another read of the record
//   topic        | the paused topic of its first record         | when the topic opens, or the record expires
//   resume       | records that the front has passed            | by a page of the key, from resume on
//   asks         | the store: more may block it than is known   | by a page of the key, from its start
//
// Each of these events ends in advance, which alone lets records go.
//
// A record is passed if it is not taken into memory when a range brings it: the key notes the first such sequence
// (resume), and a page of the key brings the record later. The next page depends on these fields:
//
//   resume | anew | asks | the next page
//   -------|------|------|---------------------------------------------------------------------------------------
//   0      | no   | no   | none: no record was passed
//   n      | no   | no   | begins at n
//   1      | yes  | no   | begins at the start of the key, since earlier records may have come back (reread)
//   1      | yes  | yes  | the same, and nothing of the key goes before it: not all that blocks it is known (ask)
//   0 or n | no   | yes  | as without asks, but nothing goes: when no known record blocks the key, advance calls ask

const (
	// keyDepth is how many records of a key may wait in memory. When half of them are gone, as many are read at
	// once.
	keyDepth = 128
	// keyReads bounds the keys of one read, or shortShare times as many that are short. maxExcluded bounds the keys
	// that a range leaves out. askMost bounds the keys whose holders are to be asked of the store.
	keyReads    = 100
	shortShare  = 5
	maxExcluded = 16
	askMost     = 500
)

// key is the memory about an ordering key. Most keys need none.
type key struct {
	route *route
	name  string
	slot  uint8
	queue []*Item // the key queue, in the order of sequences
	busy  int     // items that left the queue and are not concluded
	// single: the busy item is held first, so it is the only one.
	single   bool
	unstored []*Item                    // concluded with an outcome that blocks the key until it is stored
	blockers map[int64]core.BlockReason // by sequence: stored records that block the key
	// resume is the first sequence that was passed, 0 if none was. From there on the key's records are read by key:
	// none of them is in the queue, retries apart, and no range brings one in. 1 stands for the start of the key.
	resume  int64
	asked   int64     // the value of resume when the read under way was sent
	passed  int       // records passed since then, some of them several times
	anew    bool      // its next page begins at the start of the key, and shows everything that blocks it
	stale   bool      // something happened since the page under way was asked for: it is useless
	listed  bool      // in toRead, or in a read under way
	dropped bool      // nothing refers to it any more
	touched bool      // to be advanced when the read result has been taken in
	topic   string    // the paused topic of its head
	ends    time.Time // when the head expires; zero = never
	deep    bool      // in route.deep
	doubt
}

// doubt is about a key of which the store may know more.
type doubt struct {
	// asks: not all that blocks it is known. The store is asked before anything of it goes.
	asks  bool
	first int64 // the first record that was passed since then
	// slow: only late ranges have met it, which meet waiting records again and again. Or its page was useless
	// because of one, and the next one may be, too. It is asked about without haste.
	slow bool
}

// key returns the memory about a key. It makes one if there is none.
func (rt *route) key(name string, slot uint8) *key {
	k := rt.keys[name]
	if k == nil {
		k = &key{route: rt, name: name, slot: slot}
		rt.keys[name] = k
		if g := rt.groupOf(slot); g != nil && !g.complete {
			k.ask()
		}
	}
	return k
}

// ask has the store asked for all that the key waits for.
func (k *key) ask() { k.asks, k.anew, k.slow, k.resume = true, true, false, 1 }

// forget drops a key when there is nothing to remember about it. Above MaxKeys it also drops one about which the store
// knows everything; see below.
func (k *key) forget() {
	rt := k.route
	if len(k.queue) > 0 || k.busy > 0 || len(k.unstored) > 0 || k.listed || k.dropped {
		return
	}
	if waits := len(k.blockers) > 0 || k.topic != ""; waits && len(rt.keys) > rt.opts.MaxKeys {
		rt.forgetWait(k)
	} else if waits || k.resume != 0 {
		return
	}
	k.dropped = true
	delete(rt.keys, k.name)
}

// A key that only waits needs no memory: the store knows the reason, and says when the wait ends. A retry comes by Due,
// a decision by a notice, and a record that another session holds by another read of it. Only a paused topic is
// not known to the store. The route remembers its first record.

// forgetWait notes the first passed record and the expiry of a key that waits and is forgotten.
func (rt *route) forgetWait(k *key) {
	if k.topic != "" {
		rt.topics.pass(k.topic, k.resume, k.ends)
	}
	if g := rt.groupOf(k.slot); g != nil {
		g.forget(k.resume)
	}
}

// dropKeys forgets all keys of slots that the member has lost.
func (rt *route) dropKeys(slots core.Slots) {
	for name, k := range rt.keys {
		if !slots.Has(k.slot) {
			continue
		}
		delete(rt.keys, name)
		k.dropped = true
		for _, item := range rt.known {
			if item.key == k {
				item.key = nil
			}
		}
	}
	rt.toRead = slices.DeleteFunc(rt.toRead, func(k *key) bool { return k.dropped })
}

// passFrom notes that the key's records from seq on must be read by key. That costs one number, for any count of
// records. Many passed records make the key deep: the front leaves it out.
func (k *key) passFrom(seq int64) {
	if k.asks && (k.first == 0 || seq < k.first) {
		k.first = max(seq, 1)
	}
	if k.resume == 0 || seq < k.resume {
		k.resume = max(seq, 1)
	}
	k.passed++
	if rt := k.route; k.passed > rt.keyDepth/4 && !k.deep {
		k.deep = true
		rt.deep = append(rt.deep, k)
	}
}

// isShort reports whether few records of the key are to be read, as far as is known.
func (k *key) isShort() bool { return k.asks || k.passed <= k.route.keyDepth/shortShare }

// passedFrom returns the first record that was passed; 0 = none.
func (k *key) passedFrom() int64 {
	if k.asks && k.anew {
		return k.first // resume is the start of the key
	}
	return k.resume
}

// passQueue drops the items of a key that wait in memory; they are read again later.
func (d *Dispatcher) passQueue(k *key) { d.passItems(k, 0) }

// passBehind does so with those behind a record that blocks the key.
func (d *Dispatcher) passBehind(k *key) {
	if len(k.unstored) > 0 || k.topic != "" {
		d.passQueue(k)
	} else {
		d.passItems(k, k.firstBlocker())
	}
}

// passItems drops the items of a key behind a sequence.
func (d *Dispatcher) passItems(k *key, behind int64) {
	if len(k.queue) == 0 {
		return
	}
	kept := k.queue[:0:0]
	for _, item := range slices.Clone(k.queue) {
		if item.retry || item.held || item.Record.Seq < behind {
			kept = append(kept, item) // the store has it as held by this member: no page brings it again
			continue
		}
		k.passFrom(item.Record.Seq)
		d.remove(item)
	}
	k.queue = kept
}

// insert puts an item into the key queue, in order: a retry and a record that was put back come before the rest.
func (k *key) insert(item *Item) {
	i, _ := slices.BinarySearchFunc(k.queue, item.Record.Seq, func(o *Item, seq int64) int { return int(min(max(o.Record.Seq-seq, -1), 1)) })
	k.queue = slices.Insert(k.queue, i, item)
	k.route.load.queued++
}

// block notes that a stored record blocks the key.
func (k *key) block(seq int64, why core.BlockReason) {
	if k.blockers == nil {
		k.blockers = map[int64]core.BlockReason{}
	}
	k.blockers[seq] = why
}

// blockedBefore reports whether something before seq blocks the key. A key in doubt is blocked: its unknown records may
// be earlier ones.
func (k *key) blockedBefore(seq int64) bool {
	if k.asks {
		return true
	}
	for s := range k.blockers {
		if s < seq {
			return true
		}
	}
	for _, item := range k.unstored {
		if item.Record.Seq < seq {
			return true
		}
	}
	return false
}

// blocked reports whether no record of the key from seq on could be handed out if it was read now.
func (k *key) blocked(seq int64) bool {
	return len(k.unstored) > 0 || k.topic != "" || len(k.blockers) > 0 && k.firstBlocker() < seq
}

// blockReasonLocked: a transaction has locked the record. Only this package has the reason: no store reads it.
const blockReasonLocked = core.BlockedByAbandoned + 1

// firstBlocker returns the first record that blocks the key. One that another member has out blocks all of it: of a key
// only one is out.
func (k *key) firstBlocker() int64 {
	first := int64(math.MaxInt64)
	for seq, why := range k.blockers {
		if why == core.BlockedByHold {
			return 0
		}
		first = min(first, seq)
	}
	return first
}

// advance passes on the items that the key lets go, and asks for its next page in time. It stops at a record that is
// held back, at a paused topic, and at a record that must go alone in its key because it is held first: if that one is
// locked or gone, no later one may be out. The next page is asked for while half of the key queue is left, so that a
// busy key does not wait for a read. It is not asked for as long as its records could not go.
func (d *Dispatcher) advance(k *key) {
	if k == nil || k.dropped {
		return
	}
	if d.reads.takingIn { // until all records of the result are in their places
		if !k.touched {
			k.touched = true
			d.reads.touched = append(d.reads.touched, k)
		}
		return
	}
	rt := k.route
	// 1. Items go while the key lets them. An item behind records that were passed waits for these. A retry does
	// not: it was out before, so its place in the key is before theirs; see due.go.
	for k.busy < rt.Pipelined && len(k.queue) > 0 {
		item := k.queue[0]
		seq := item.Record.Seq
		if k.resume != 0 && k.resume <= seq && !item.retry || k.blockedBefore(seq) {
			break
		}
		if k.topic = ""; item.topicPaused() {
			k.pause(item.Record.Envelope.Topic, item.ends)
			d.passQueue(k)
			break
		}
		single := item.isSuspect() || !rt.Hold && !item.isPlain()
		if k.busy > 0 && (single || k.single) { // it goes later: nothing of the key may pass it
			break
		}
		k.single = single
		k.queue = k.queue[1:]
		rt.load.queued--
		k.busy++
		d.enqueue(item)
	}
	// 2. No known record blocks the key any more, and only the doubt is left: the store is asked.
	if k.asks && !k.anew && len(k.blockers) == 0 {
		k.ask()
	}
	// 3. The next page is asked for. A page of a key in doubt (anew) tells what blocks it, so it does not
	// wait for that.
	low := len(k.queue) == 0 || len(k.queue) < d.keyDepth/2 || k.resume <= k.queue[0].Record.Seq
	if k.resume != 0 && !k.listed && low && (!k.blocked(k.resume) || k.anew) {
		k.listed = true
		rt.toRead = append(rt.toRead, k)
	}
	// 4. A key about which nothing is left to know leaves memory.
	k.forget()
}

// enqueue puts an item whose key is free where it belongs: to the suspects if it may have killed a member, to the wants
// if a Hold must store that this member has it, else among the ready ones.
func (d *Dispatcher) enqueue(item *Item) {
	rt := item.route
	rt.load.inWindow++
	switch {
	case item.isSuspect():
		item.state = itemSuspect
		rt.suspects.waiting = append(rt.suspects.waiting, item)
	case !item.isPlain():
		item.state, item.at = itemWanting, d.now
		rt.wants = append(rt.wants, item)
	default:
		rt.makeReady(item)
	}
}

// makeReady adds an item to those that are to be handed out.
func (rt *route) makeReady(item *Item) {
	item.state = itemReady
	at := len(rt.ready)
	switch {
	case item.alone: // the other items wait for it
		at = 0
	case rt.Order == waybill.OrderBestEffortHLC:
		at, _ = slices.BinarySearchFunc(rt.ready, item, func(a, b *Item) int {
			return cmp.Or(cmp.Compare(a.Record.Envelope.HLC, b.Record.Envelope.HLC), cmp.Compare(a.Record.Seq, b.Record.Seq))
		})
	}
	rt.ready = slices.Insert(rt.ready, at, item)
}

// admit takes in a ready record of a range. It is handed out, or goes into its key, or is passed. hazard is the least
// position of a walk or a late scan under way (group.go): records behind it may lack earlier ones of their transaction,
// and so their key is read from there on. The steps:
//
//  1. A record that is in memory, or was settled after the read was sent, is skipped.
//  2. A record that another session holds, or that was locked a short while ago, is not handed out. It blocks its key.
//  3. A record without a key goes, or is passed if its topic is paused.
//  4. At the bound of keys the head of a new key is passed if its topic is paused: it need not be remembered first.
//  5. Any other record goes to the end of its key queue, or the key notes that it was passed.
func (d *Dispatcher) admit(rt *route, rec *core.Record, hazard int64) {
	if rt.known[rec.Seq] != nil || rt.recent.read[rec.Seq] {
		return
	}
	ordered := rt.ordered() && rec.Envelope.Key != ""
	foreign := d.foreign(rec.HeldBy)
	if foreign {
		rt.visitLater(rec.Ref, rec.Slot, rec.Envelope.Key)
	}
	why := core.BlockedByHold
	if !foreign && rt.isLocked(rec) {
		foreign, why = true, blockReasonLocked
	}
	if !ordered {
		if foreign {
			return
		}
		if ends := rt.expiresAt(rec); rt.topics.paused[rec.Envelope.Topic] && !rt.isPast(ends) {
			rt.topics.pass(rec.Envelope.Topic, rec.Seq, ends)
			return
		}
		d.enqueue(rt.newItem(rec))
		return
	}
	if rt.keys[rec.Envelope.Key] == nil && rt.topics.paused[rec.Envelope.Topic] && len(rt.keys) >= rt.opts.MaxKeys && !foreign {
		if ends := rt.expiresAt(rec); !rt.isPast(ends) { // it need not be remembered first
			rt.topics.pass(rec.Envelope.Topic, rec.Seq, ends)
			if g := rt.groupOf(rec.Slot); g != nil {
				g.forget(rec.Seq)
			}
			return
		}
	}
	_, met := rt.keys[rec.Envelope.Key]
	k := rt.key(rec.Envelope.Key, rec.Slot)
	k.slow = d.reads.late && (k.slow || !met && k.asks)
	switch {
	// a later record of the key would overtake it
	case foreign:
		k.block(rec.Seq, why)
	// earlier records of the key are not in memory: a page brings them together
	case k.resume != 0 && k.resume <= rec.Seq:
		k.passFrom(rec.Seq)
	// a walk or a late scan may still find an earlier one
	case hazard < rec.Seq:
		k.passFrom(hazard + 1)
	// At the bound of all queues a key with nothing in memory still gets one record: otherwise it would wait for
	// others.
	case k.blocked(rec.Seq), len(k.queue) >= d.keyDepth, rt.load.queued >= d.queueDepth*d.opts.Window && k.busy+len(k.queue) > 0:
		k.passFrom(rec.Seq)
	default:
		item := rt.newItem(rec)
		item.key = k
		k.insert(item)
	}
	d.advance(k)
}

// applyKeyPage takes in the page of a key that was read from From up to To. The page counts only if nothing has
// happened to the key since it was sent: no notice (stale), no earlier record that was passed, and no walk or late scan
// that is still before its begin. A page from the start of the key shows everything that blocks it, and so replaces the
// memory of that. excluded: the front of the same read left the key out.
func (d *Dispatcher) applyKeyPage(rt *route, k *key, from, to int64, excluded bool, page *core.KeyRecords, hazard int64) {
	k.listed = false
	if k.dropped {
		return
	}
	// 1. Something happened since the page was asked for: it is asked for again.
	if stale := k.stale; stale || k.resume < k.asked { // an earlier record was passed meanwhile
		k.stale = false
		d.advance(k)
		return
	}
	anew := k.anew
	// 2. A walk or a late scan is still before the page, and may find an earlier record.
	if hazard < from {
		k.passFrom(hazard + 1)
		k.slow = true
		d.advance(k)
		return
	}
	// 3. A page from the start replaces the memory of the blockers.
	if anew {
		k.anew, k.asks, k.first = false, false, 0
		for seq := range k.blockers {
			// A retry that was stored after the page was read blocks the key, although the page does not
			// show it.
			if !rt.recent.read[seq] {
				delete(k.blockers, seq)
			}
		}
	}
	// 4. Waiting records of the page block the key.
	for i := range page.Blocking {
		rt.wait(&page.Blocking[i])
	}
	// 5. The records of the page go into the queue. From here on nothing is passed, as far as the page goes.
	k.resume, k.passed, k.topic = 0, 0, "" // the page has the head
	for i := range page.Records {
		rec := &page.Records[i]
		if rt.known[rec.Seq] != nil || rt.recent.read[rec.Seq] {
			continue
		}
		if d.foreign(rec.HeldBy) {
			k.block(rec.Seq, core.BlockedByHold)
			rt.visitLater(rec.Ref, rec.Slot, k.name)
			continue
		}
		if rt.isLocked(rec) {
			k.block(rec.Seq, blockReasonLocked)
			continue
		}
		item := rt.newItem(rec)
		item.key = k
		k.insert(item)
		k.slow = false
	}
	// 6. The records behind the page are passed: those that its limit has cut, and those that the front of the same
	// read left out.
	if page.More {
		k.passed = d.keyDepth / shortShare // with the one that passFrom counts the key is not short
	}
	switch {
	case page.More && len(page.Records) > 0:
		k.passFrom(page.Records[len(page.Records)-1].Seq + 1)
	case page.More:
		k.passFrom(from + 1)
	case excluded:
		k.passFrom(to + 1) // the range did not bring the records behind it
	}
	// 7. Records behind a blocker need no memory.
	if k.blocked(math.MaxInt64) {
		d.passBehind(k)
	}
	d.advance(k)
}

// wait takes in a record that waits for its time, and so blocks its key.
func (rt *route) wait(w *core.BlockingRecord) {
	if rt.known[w.Seq] != nil || rt.recent.read[w.Seq] {
		return
	}
	foreign := rt.foreign(w.HeldBy)
	if foreign {
		rt.visitLater(w.Ref, w.Slot, w.Key)
	}
	if w.Key == "" || !rt.ordered() || w.Why == core.BlockedByHold && !foreign {
		return
	}
	if w.Why == core.BlockedByAbandoned && !rt.Blocks {
		return
	}
	g := rt.groupOf(w.Slot)
	if g == nil {
		return
	}
	rt.blockKey(g, w.Key, w.Slot, w.Seq, w.Why)
}

// blockKey notes that a stored record blocks a key. If the key cannot be remembered, the group notes that it does not
// know all: from then on the store is asked about each new key.
func (rt *route) blockKey(g *group, name string, slot uint8, seq int64, why core.BlockReason) {
	k := rt.keys[name]
	if k == nil {
		if len(rt.keys) >= rt.opts.MaxKeys {
			g.forget(0)
			return
		}
		k = &key{route: rt, name: name, slot: slot, doubt: doubt{asks: !g.complete}}
		rt.keys[name] = k
	}
	k.block(seq, why)
}

// reread schedules another read of the whole key, from its start. The queue goes, since earlier records may have come
// back. A page that is under way may show the state before, so it is stale.
func (d *Dispatcher) reread(rt *route, name string, slot uint8) {
	if name == "" || !rt.ordered() {
		return
	}
	k := rt.key(name, slot)
	k.anew, k.slow, k.resume, k.stale = true, false, 1, k.listed
	d.passQueue(k)
	d.advance(k)
}
