package dispatch

import (
	"cmp"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

const (
	// keyDepth is how many records of a key may wait in memory; as many are read at once when half of them are gone.
	keyDepth = 128
	// queueDepth is how many windows of records may wait behind their keys in memory. Beyond it the front only
	// notes where a key goes on. From half of it on nothing is read while half of the window is out or ready: what
	// comes behind could not go sooner.
	queueDepth = 8
	// keyReads bounds the keys of one read, and maxLeave those that a range leaves out.
	keyReads = 100
	maxLeave = 16
)

// key is what is remembered of an ordering key: nothing, for most of them.
type key struct {
	route *route
	name  string
	slot  uint8
	queue []*Item // in the order of their sequence
	busy  int     // beyond the queue and not concluded
	// single: what is busy is held first, so that it is the only one.
	single bool
	limbo  []*Item // concluded with something that holds the key until it is stored
	holds  map[int64]core.Obstacle
	// resume is the first sequence that was passed, 0 if none was: from there on its records are read by key.
	resume  int64
	asked   int64 // resume when the read under way was sent
	passed  int   // records since then
	anew    bool  // its next page begins at its beginning, and says all that holds it
	stale   bool  // the page under way says nothing
	listed  bool  // in toRead, or in a read under way
	gone    bool
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
	if len(k.queue) == 0 && k.busy == 0 && len(k.limbo) == 0 && len(k.holds) == 0 && k.resume == 0 && !k.listed && !k.gone {
		k.gone = true
		delete(k.route.keys, k.name)
	}
}

// passFrom notes that records from seq on are to be read by key.
func (k *key) passFrom(seq int64) {
	if k.resume == 0 || seq < k.resume {
		k.resume = max(seq, 1)
	}
	k.passed++
}

// pass drops what waits in memory, to be read again.
func (d *Dispatcher) passQueue(k *key) {
	if len(k.queue) == 0 {
		return
	}
	kept := k.queue[:0:0]
	for _, it := range slices.Clone(k.queue) {
		if it.retry || it.held {
			kept = append(kept, it) // its hold is written: nothing but memory has it
			continue
		}
		k.passFrom(it.Record.Seq)
		d.remove(it)
	}
	k.queue = kept
}

// insert puts it into the queue, in order.
func (k *key) insert(it *Item) {
	i, _ := slices.BinarySearchFunc(k.queue, it.Record.Seq, func(o *Item, seq int64) int { return int(min(max(o.Record.Seq-seq, -1), 1)) })
	k.queue = slices.Insert(k.queue, i, it)
	k.route.queued++
}

// hold notes that a stored record holds the key.
func (k *key) hold(seq int64, why core.Obstacle) {
	if k.holds == nil {
		k.holds = map[int64]core.Obstacle{}
	}
	k.holds[seq] = why
}

// heldBefore reports whether something before seq holds the key.
func (d *Dispatcher) heldBefore(k *key, seq int64) bool {
	for s, why := range k.holds {
		if s < seq && (why != core.ObstacleRetrying || d.has(ruleTwoRetries) || !k.hasRetry(seq)) {
			return true
		}
	}
	for _, it := range k.limbo {
		if it.Record.Seq < seq {
			return true
		}
	}
	return false
}

func (k *key) hasRetry(seq int64) bool {
	return slices.ContainsFunc(k.queue, func(it *Item) bool { return it.retry && it.Record.Seq == seq })
}

// blocked reports whether nothing of the key that is read now could be handed out.
func (k *key) blocked() bool { return len(k.holds) > 0 || len(k.limbo) > 0 || k.topic != "" }

// advance hands on what the key lets go, and has its next page read when it is time.
func (d *Dispatcher) advance(k *key) {
	if k == nil || k.gone {
		return
	}
	if d.paging { // until all that the page brought is in its place
		if !k.touched {
			k.touched = true
			d.touched = append(d.touched, k)
		}
		return
	}
	rt := k.route
	for k.busy < rt.Pipelined && len(k.queue) > 0 {
		it := k.queue[0]
		seq := it.Record.Seq
		if k.resume != 0 && k.resume <= seq && !it.retry || d.heldBefore(k, seq) {
			break
		}
		if k.topic = ""; rt.topics[it.Record.Envelope.Topic] && !it.held {
			k.topic = it.Record.Envelope.Topic
			d.passQueue(k)
			break
		}
		single := d.isSuspect(it) || !rt.Hold && !d.isPlain(it)
		if k.busy > 0 && (single || k.single) { // it takes longer until it goes: nothing of the key may pass it
			break
		}
		k.single = single
		k.queue = k.queue[1:]
		rt.queued--
		k.busy++
		d.hand(it)
	}
	short := len(k.queue) < d.keyDepth/2 || k.resume <= k.queue[0].Record.Seq
	if k.resume != 0 && !k.listed && short && (!k.blocked() || k.anew) {
		k.listed = true
		rt.toRead = append(rt.toRead, k)
	}
	k.forget()
}

// isPlain reports whether an item is handed out as soon as it is its turn: nothing is written before.
func (d *Dispatcher) isPlain(it *Item) bool {
	return !d.isSuspect(it) && (it.held || !it.Record.Withdrawable && !it.route.Hold)
}

// hand puts an item that nothing of its key holds where it belongs.
func (d *Dispatcher) hand(it *Item) {
	rt := it.route
	rt.held++
	switch {
	case d.isSuspect(it):
		it.state = itemSuspect
		d.suspects = append(d.suspects, it)
	case !d.isPlain(it):
		it.state, it.at = itemWanting, d.now
		rt.wants = append(rt.wants, it)
	default:
		d.makeReady(it)
	}
}

// makeReady puts an item in line to be handed out.
func (d *Dispatcher) makeReady(it *Item) {
	rt := it.route
	it.state = itemReady
	at := len(rt.ready)
	switch {
	case it.alone: // the others wait for it
		at = 0
	case rt.Order == waybill.OrderHLC:
		at, _ = slices.BinarySearchFunc(rt.ready, it, func(a, b *Item) int {
			return cmp.Or(cmp.Compare(a.Record.Envelope.HLC, b.Record.Envelope.HLC), cmp.Compare(a.Record.Seq, b.Record.Seq))
		})
	}
	rt.ready = slices.Insert(rt.ready, at, it)
}

// admit takes in a ready record that a range brought. hazard is the least position of a walk: what is behind it may
// lack earlier records of its transaction.
func (d *Dispatcher) admit(rt *route, rec *core.Record, hazard int64) {
	if rt.known[rec.Seq] != nil || rt.recent[rec.Seq] && d.has(ruleRecent) {
		return
	}
	ordered := rt.ordered() && rec.Envelope.Key != ""
	foreign := rec.Holder != 0 && rec.Holder != d.session && d.has(ruleForeignHold)
	if foreign {
		d.visitLater(rt, rec.Ref, rec.Slot, rec.Envelope.Key)
	}
	if !ordered {
		if foreign {
			return
		}
		if rt.topics[rec.Envelope.Topic] {
			rt.passTopic(rec.Envelope.Topic, rec.Seq)
			return
		}
		d.hand(d.item(rt, rec))
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
	case k.blocked(), len(k.queue) >= d.keyDepth, rt.queued >= queueDepth*d.opts.Window && k.busy+len(k.queue) > 0:
		k.passFrom(rec.Seq)
	default:
		it := d.item(rt, rec)
		it.key = k
		k.insert(it)
	}
	d.advance(k)
}

// item makes an item of a record that was read.
func (d *Dispatcher) item(rt *route, rec *core.Record) *Item {
	it := &Item{Record: *rec, session: d.session, route: rt, held: rec.Holder != 0 && rec.Holder == d.session}
	it.unknown = !rt.Queue && rec.Seq <= rt.careful[rec.Slot] // it may have been out at a member that died
	rt.known[rec.Seq] = it
	rt.bytes += int64(len(rec.Envelope.Body))
	return it
}

func (rt *route) passTopic(topic string, seq int64) {
	if first, ok := rt.passed[topic]; !ok || seq < first {
		rt.passed[topic] = seq
	}
}

// visit has a record read again, if it is not to be read anyhow for the sake of a decision.
func (rt *route) visit(v *revisit) {
	if old := rt.again[v.ref.Seq]; old == nil || old.decision == nil {
		rt.again[v.ref.Seq] = v
	}
}

// visitLater has a record read again that another holds.
func (d *Dispatcher) visitLater(rt *route, ref core.Ref, slot uint8, name string) {
	if rt.again[ref.Seq] == nil && d.has(ruleAgain) && !rt.anyones(name) {
		rt.again[ref.Seq] = &revisit{ref: ref, slot: slot, key: name, at: d.now.Add(againAfter)}
	}
}

// takeKey takes in the page of a key that was read from From up to To.
func (d *Dispatcher) takeKey(rt *route, k *key, from, to int64, left bool, page *core.KeyRecords, hazard int64) {
	k.listed = false
	if k.gone {
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
			if !rt.recent[seq] {
				delete(k.holds, seq)
			}
		}
	}
	for i := range page.Waiting {
		d.wait(rt, &page.Waiting[i])
	}
	k.resume, k.passed = 0, 0
	for i := range page.Records {
		rec := &page.Records[i]
		if rt.known[rec.Seq] != nil || rt.recent[rec.Seq] && d.has(ruleRecent) {
			continue
		}
		if rec.Holder != 0 && rec.Holder != d.session && d.has(ruleForeignHold) {
			k.hold(rec.Seq, core.ObstacleHeld)
			d.visitLater(rt, rec.Ref, rec.Slot, k.name)
			continue
		}
		it := d.item(rt, rec)
		it.key = k
		k.insert(it)
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
func (d *Dispatcher) wait(rt *route, w *core.Waiting) {
	if rt.known[w.Seq] != nil || rt.recent[w.Seq] {
		return
	}
	foreign := w.Holder != 0 && w.Holder != d.session
	if foreign {
		d.visitLater(rt, w.Ref, w.Slot, w.Key)
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

// renew has everything of a key read again, from its beginning.
func (d *Dispatcher) renew(rt *route, name string, slot uint8) {
	if name == "" || !rt.ordered() {
		return
	}
	k := rt.key(name, slot)
	k.anew, k.resume, k.stale = true, 1, k.listed
	d.passQueue(k)
	d.advance(k)
}
