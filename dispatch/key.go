package dispatch

import (
	"cmp"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

const (
	// keyDepth is how many records of a key may wait in memory; as many are read at once when half of them are
	// gone.
	keyDepth = 128
	// keyReads bounds the keys of one read, and maxLeave those that a range leaves out.
	keyReads = 100
	maxLeave = 16
)

// key is what is remembered of an ordering key: nothing, for most of them.
type key struct {
	route *route
	name  string
	slot  uint8
	queue []*Item // the key queue: in the order of their sequence
	busy  int     // beyond the queue and not concluded
	// single: what is busy is held first, so that it is the only one.
	single   bool
	unstored []*Item // concluded with something that holds the key until it is stored
	holds    map[int64]core.Obstacle
	// resume is the first sequence that was passed, 0 if none was: from there on its records are read by key.
	resume  int64
	asked   int64  // resume when the read under way was sent
	passed  int    // records since then
	anew    bool   // its next page begins at its beginning, and says all that holds it
	stale   bool   // the page under way says nothing
	listed  bool   // in toRead, or in a read under way
	dropped bool   // nothing refers to it any more
	touched bool   // to be advanced when the page is taken in
	topic   string // blocked one of its head
}

// key returns what is remembered of a key, which is new if nothing was.
func (rt *route) key(name string, slot uint8) *key {
	k := rt.keys[name]
	if k == nil {
		k = &key{route: rt, name: name, slot: slot}
		rt.keys[name] = k
	}
	return k
}

// forget drops a key when there is nothing about it to remember.
func (k *key) forget() {
	if len(k.queue) == 0 && k.busy == 0 && len(k.unstored) == 0 && len(k.holds) == 0 && k.resume == 0 && !k.listed && !k.dropped {
		k.dropped = true
		delete(k.route.keys, k.name)
	}
}

// dropKeys forgets all keys of slots that are no longer the member's.
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

// passFrom notes that records from seq on are to be read by key.
func (k *key) passFrom(seq int64) {
	if k.resume == 0 || seq < k.resume {
		k.resume = max(seq, 1)
	}
	k.passed++
}

// passQueue drops what waits in memory of a key, to be read again.
func (d *Dispatcher) passQueue(k *key) {
	if len(k.queue) == 0 {
		return
	}
	kept := k.queue[:0:0]
	for _, item := range slices.Clone(k.queue) {
		if item.retry || item.held {
			kept = append(kept, item) // its hold is written: nothing but memory has it
			continue
		}
		k.passFrom(item.Record.Seq)
		d.remove(item)
	}
	k.queue = kept
}

// insert puts an item into the key queue, in order.
func (k *key) insert(item *Item) {
	i, _ := slices.BinarySearchFunc(k.queue, item.Record.Seq, func(o *Item, seq int64) int { return int(min(max(o.Record.Seq-seq, -1), 1)) })
	k.queue = slices.Insert(k.queue, i, item)
	k.route.load.queued++
}

// hold notes that a stored record holds the key.
func (k *key) hold(seq int64, why core.Obstacle) {
	if k.holds == nil {
		k.holds = map[int64]core.Obstacle{}
	}
	k.holds[seq] = why
}

// heldBefore reports whether something before seq holds the key.
func (k *key) heldBefore(seq int64) bool {
	for s, why := range k.holds {
		if s < seq && (why != core.ObstacleRetrying || k.route.has(ruleTwoRetries) || !k.hasRetry(seq)) {
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

func (k *key) hasRetry(seq int64) bool {
	return slices.ContainsFunc(k.queue, func(item *Item) bool { return item.retry && item.Record.Seq == seq })
}

// blocked reports whether nothing of the key that is read now could be handed out.
func (k *key) blocked() bool { return len(k.holds) > 0 || len(k.unstored) > 0 || k.topic != "" }

// advance hands on what the key lets go, and has its next page read when it is time.
func (d *Dispatcher) advance(k *key) {
	if k == nil || k.dropped {
		return
	}
	if d.reads.paging { // until all that the page brought is in its place
		if !k.touched {
			k.touched = true
			d.reads.touched = append(d.reads.touched, k)
		}
		return
	}
	rt := k.route
	for k.busy < rt.Pipelined && len(k.queue) > 0 {
		item := k.queue[0]
		seq := item.Record.Seq
		if k.resume != 0 && k.resume <= seq && !item.retry || k.heldBefore(seq) {
			break
		}
		if k.topic = ""; item.topicBlocked() {
			k.topic = item.Record.Envelope.Topic
			d.passQueue(k)
			break
		}
		single := item.isSuspect() || !rt.Hold && !item.isPlain()
		if k.busy > 0 && (single || k.single) { // it takes longer until it goes: nothing of the key may pass it
			break
		}
		k.single = single
		k.queue = k.queue[1:]
		rt.load.queued--
		k.busy++
		d.hand(item)
	}
	short := len(k.queue) < d.keyDepth/2 || k.resume <= k.queue[0].Record.Seq
	if k.resume != 0 && !k.listed && short && (!k.blocked() || k.anew) {
		k.listed = true
		rt.toRead = append(rt.toRead, k)
	}
	k.forget()
}

// hand puts an item that nothing of its key holds where it belongs.
func (d *Dispatcher) hand(item *Item) {
	rt := item.route
	rt.load.held++
	switch {
	case item.isSuspect():
		item.state = itemSuspect
		d.holds.suspects = append(d.holds.suspects, item)
	case !item.isPlain():
		item.state, item.at = itemWanting, d.now
		rt.wants = append(rt.wants, item)
	default:
		rt.makeReady(item)
	}
}

// makeReady puts an item in line to be handed out.
func (rt *route) makeReady(item *Item) {
	item.state = itemReady
	at := len(rt.ready)
	switch {
	case item.alone: // the others wait for it
		at = 0
	case rt.Order == waybill.OrderHLC:
		at, _ = slices.BinarySearchFunc(rt.ready, item, func(a, b *Item) int {
			return cmp.Or(cmp.Compare(a.Record.Envelope.HLC, b.Record.Envelope.HLC), cmp.Compare(a.Record.Seq, b.Record.Seq))
		})
	}
	rt.ready = slices.Insert(rt.ready, at, item)
}

// admit takes in a ready record that a range brought. hazard is the least position of a walk: what is behind it may
// lack earlier records of its transaction.
func (d *Dispatcher) admit(rt *route, rec *core.Record, hazard int64) {
	if rt.known[rec.Seq] != nil || rt.recent.read[rec.Seq] && d.has(ruleRecent) {
		return
	}
	ordered := rt.ordered() && rec.Envelope.Key != ""
	foreign := d.foreign(rec.Holder) && d.has(ruleForeignHold)
	if foreign {
		rt.visitLater(rec.Ref, rec.Slot, rec.Envelope.Key)
	}
	if !ordered {
		if foreign {
			return
		}
		if rt.topics.blocked[rec.Envelope.Topic] {
			rt.topics.pass(rec.Envelope.Topic, rec.Seq)
			return
		}
		d.hand(rt.newItem(rec))
		return
	}
	k := rt.key(rec.Envelope.Key, rec.Slot)
	switch {
	case foreign:
		k.hold(rec.Seq, core.ObstacleHeld)
	case k.resume != 0 && k.resume <= rec.Seq:
		k.passed++
	case hazard < rec.Seq && d.has(rulePassHazard):
		k.passFrom(hazard + 1)
	case k.blocked(), len(k.queue) >= d.keyDepth, rt.load.queued >= queueDepth*d.opts.Window && k.busy+len(k.queue) > 0:
		k.passFrom(rec.Seq)
	default:
		item := rt.newItem(rec)
		item.key = k
		k.insert(item)
	}
	d.advance(k)
}

// takeKey takes in the page of a key that was read from From up to To.
func (d *Dispatcher) takeKey(rt *route, k *key, from, to int64, left bool, page *core.KeyRecords, hazard int64) {
	k.listed = false
	if k.dropped {
		return
	}
	if stale := k.stale; stale || k.resume < k.asked { // something earlier was passed meanwhile
		k.stale = false
		d.advance(k)
		return
	}
	anew := k.anew
	if hazard < from && d.has(ruleHazardKeys) {
		k.passFrom(hazard + 1) // a walk may bring an earlier one
		d.advance(k)
		return
	}
	if anew {
		k.anew = false
		for seq := range k.holds {
			if !rt.recent.read[seq] {
				delete(k.holds, seq)
			}
		}
	}
	for i := range page.Waiting {
		rt.wait(&page.Waiting[i])
	}
	k.resume, k.passed = 0, 0
	for i := range page.Records {
		rec := &page.Records[i]
		if rt.known[rec.Seq] != nil || rt.recent.read[rec.Seq] && d.has(ruleRecent) {
			continue
		}
		if d.foreign(rec.Holder) && d.has(ruleForeignHold) {
			k.hold(rec.Seq, core.ObstacleHeld)
			rt.visitLater(rec.Ref, rec.Slot, k.name)
			continue
		}
		item := rt.newItem(rec)
		item.key = k
		k.insert(item)
	}
	switch {
	case page.More && len(page.Records) > 0:
		k.passFrom(page.Records[len(page.Records)-1].Seq + 1)
	case page.More:
		k.passFrom(from + 1)
	case left:
		k.passFrom(to + 1) // the range did not bring what follows
	}
	if k.blocked() {
		d.passQueue(k)
	}
	d.advance(k)
}

// wait takes in a record that waits, and so holds its key.
func (rt *route) wait(w *core.Waiting) {
	if rt.known[w.Seq] != nil || rt.recent.read[w.Seq] {
		return
	}
	foreign := rt.foreign(w.Holder)
	if foreign {
		rt.visitLater(w.Ref, w.Slot, w.Key)
	}
	if w.Key == "" || !rt.ordered() || w.Why == core.ObstacleHeld && !foreign {
		return
	}
	if w.Why == core.ObstacleBlocking && !rt.Blocks {
		return
	}
	k := rt.key(w.Key, w.Slot)
	k.hold(w.Seq, w.Why)
}

// reread has everything of a key read again, from its beginning.
func (d *Dispatcher) reread(rt *route, name string, slot uint8) {
	if name == "" || !rt.ordered() {
		return
	}
	k := rt.key(name, slot)
	k.anew, k.resume, k.stale = true, 1, k.listed
	d.passQueue(k)
	d.advance(k)
}
