package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Timers and retries wait in the store until they are due. Due then gives timers a new number, so that they are read
// like any staged record. It holds retries and returns them: their place in the key is before the other records, so no
// range would bring them in time.

const (
	// dueLimit bounds the records of one Due.
	dueLimit = 500
	// dueFirst bounds the retries of one while no size of a body is known.
	dueFirst = 20
	// duePoll is how often the store is asked for due records without a hint that there are any. It becomes rarer
	// step by step, up to dueLast, while nothing was due or handed out, no number was drawn and no transaction is
	// open. A queue that members share has no longer pause: the others put off records of its slots.
	duePoll = time.Second
	dueLast = 30 * time.Second
	// dueRest is how often the time that a Due for all took in vain passes before the next one.
	dueRest = 10
	// dueAgain is the least pause after due records could not be held.
	dueAgain = 20 * time.Millisecond
	// dueMargin is for how long a retry can be due that no Due could see: its settle was under way.
	dueMargin = time.Minute
	// dueSweep is how often a Due looks for all that is due, however long ago.
	dueSweep = 10 * time.Minute
	// duePause is the least pause between a Due and one that a wake-up asks for.
	duePause = 50 * time.Millisecond
)

// timers knows when to ask the store for due records: timers, and retries.
type timers struct {
	at   time.Time     // when to ask next; zero = not
	sent time.Time     // when the store was asked last
	none bool          // nothing more was due then
	last int64         // the greatest number that was known then
	rest time.Duration // the latest pause; doubled while the member is calm

	missing   int64 // numbers that were drawn, and whose records no read has brought
	missingTo int64 // the greatest of them
}

// reset forgets what the store said to a session that has ended.
func (t *timers) reset() { *t = timers{sent: t.sent} }

// askBy makes sure that the store is asked by then.
func (t *timers) askBy(at time.Time) { t.at = earliest(t.at, at) }

// wake makes sure that the store is asked now, or when the pause since the last time ends.
func (t *timers) wake(now time.Time, pause time.Duration) {
	t.rest = 0
	t.askBy(later(t.sent.Add(pause), now))
}

// noteMissing takes in how many numbers were drawn for which a read brought no record. A timer may have them. While the
// member gathers, no Wake asks for timers. So the store is asked if records are still missing one read later, until
// their transactions have ended: visible is up to where they have.
func (t *timers) noteMissing(now time.Time, n, last, visible int64) {
	old := t.missing > 0
	if t.missing = max(t.missing+n, 0); n > 0 {
		t.missingTo = last
	}
	if !old || t.missing == 0 {
		return
	}
	t.wake(now, duePause)
	if visible >= t.missingTo {
		t.missing = 0
	}
}

// nextRest returns the pause until the next Due, if nothing asks for one before.
func (d *Dispatcher) nextRest() time.Duration {
	t := &d.timers
	calm := t.none && t.last == d.db.last && !d.db.unsettled() && d.work.out == 0 && d.now.Sub(d.work.handedAt) >= activeFor && !d.sharesQueue()
	t.last = d.db.last
	if t.rest = min(2*t.rest, d.dueLast); !calm || t.rest < duePoll {
		t.rest = duePoll
	}
	return t.rest
}

// overdue knows the time since which records that came due must be looked for. Otherwise each Due would go over all
// retries and timers that were sent since the oldest snapshot in the database. A record that came due before can come
// back only if a transaction shows it late, if another member dies, leaves or releases a partition, if an operator puts
// it back, or if this member forgets it: then the next Due looks for all. Such a Due also repeats the retries that this
// member holds. The others leave them out: all of these are in memory.
type overdue struct {
	*env
	since    time.Time     // when a Due was sent after which nothing was due
	allAt    time.Time     // when to look for all; zero = at once
	asked    bool          // the Due under way looks for all, and nothing has happened since it was sent
	repeated bool          // it repeats what is held, and the same
	missing  int           // at most so many retries are held and not in memory
	narrow   bool          // the latest one that was answered did not look far enough back
	fails    int           // Dues for all that were not answered; the index in farBack
	rest     time.Duration // the least pause before it is tried again
	repeatBy time.Time     // until then a Due without an answer may be executed: each Due repeats what is held
}

// all has the next Due look for all, and repeat what is held.
func (o *overdue) all() {
	o.allAt, o.asked, o.repeated, o.missing = time.Time{}, false, false, max(o.missing, 1)
}

// forget does so because the member forgets a retry that it holds.
func (o *overdue) forget() {
	o.missing++
	o.all()
}

// within returns how far back the next Due looks; 0 = for all. If that takes too long, it is better to send the latest
// due records than none.
func (o *overdue) within() time.Duration {
	if (o.narrow || !o.noSweeps) && !o.now.Before(o.allAt) && !o.allAt.IsZero() {
		o.all()
	}
	if o.asked = o.since.IsZero() || o.allAt.IsZero(); o.asked {
		return o.farBack[o.fails]
	}
	return o.now.Sub(o.since) + o.dueMargin
}

// repeats reports whether the next Due repeats held retries.
func (o *overdue) repeats() bool { return o.asked && o.missing > 0 || o.now.Before(o.repeatBy) }

// came notes that so many retries came that were not in memory. Held ones come first.
func (o *overdue) came(n int) {
	if o.repeated {
		o.missing = max(o.missing-n, 0)
	}
}

// answered notes that no more records are due in the scope of a Due, and that all held ones of it are in memory. After
// one that did not look for all, another one looks farther back. One that was executed long after it was sent did not
// look as far back as it was to. One for all that did not repeat what is held is followed by one that does: the store
// leaves out what is locked.
func (o *overdue) answered(sent time.Time) {
	switch {
	case o.asked && !o.repeated:
		o.all()
		return
	case !o.asked && o.now.Sub(sent) > o.dueMargin/2:
		o.all()
		return
	case !o.asked:
	case o.fails == 0:
		o.allAt, o.narrow = o.now.Add(dueSweep), false
	default:
		o.allAt, o.narrow, o.fails = o.now.Add(o.rest), true, o.fails-1
	}
	if o.repeated {
		o.missing = 0
	}
	o.since, o.asked = sent, false
}

// failed notes that a Due was not answered. It may have held retries, or hold them later. When also the one that looks
// the least far back fails, that is not the reason.
func (o *overdue) failed(sent time.Time) {
	switch {
	case !o.asked:
	case o.fails < len(o.farBack)-1:
		o.fails, o.rest = o.fails+1, min(dueRest*o.now.Sub(sent), dueSweep)
	default:
		o.rest = 0
	}
	o.all()
	o.repeatBy = o.now.Add(dueSweep)
}

// due returns the next Due, or nil. It asks for the routes that have room. A crowded route waits a moment: the keys
// that are to be asked about go first.
func (d *Dispatcher) due() *Call {
	if d.calls.busy(CallDue) || d.releases.busy() || d.timers.at.IsZero() || d.timers.at.After(d.now) || !d.room() {
		return nil
	}
	parts, limit := d.dueParts()
	if len(parts) == 0 {
		d.timers.at = d.now.Add(duePoll)
		if slices.ContainsFunc(d.routes, (*route).crowded) {
			d.timers.at = d.now.Add(dueAgain)
		}
		return nil
	}
	c := &Call{kind: CallDue}
	c.op = &dueOp{d: d, session: d.session, parts: parts, limit: limit}
	d.calls.begin(c)
	d.timers.sent = d.now
	for _, rt := range d.routes {
		clear(rt.recent.due)
	}
	d.timers.at = d.now.Add(d.nextRest())
	return c
}

// dueParts returns the slots to ask for, and how many retries may come. If one route repeats what is held, all do,
// since the request has one limit: it grows by the retries in memory, which come first and bring nothing.
func (d *Dispatcher) dueParts() (parts []core.RouteSlots, limit int) {
	limit = d.dueLimit
	repeats := false
	for _, rt := range d.routes {
		room := rt.room()
		if s := rt.slots(); s != 0 && room > 0 && !rt.crowded() {
			parts = append(parts, core.RouteSlots{Route: rt.Name, Slots: s, MaxOverdue: rt.overdue.within()})
			repeats = repeats || rt.overdue.repeats()
			limit = min(limit, room, rt.fit(dueFirst))
			if rt.Queue {
				limit = min(limit, max(d.handlers.free, dueAhead))
			}
		}
	}
	for i := range parts {
		parts[i].DueExcludeHeld = !repeats
		d.byName[parts[i].Route].overdue.repeated = repeats
	}
	if !repeats {
		return parts, limit
	}
	for _, rt := range d.routes { // records that are held already are answered first, and bring nothing
		for _, item := range rt.known {
			if item.retry {
				limit++
			}
		}
	}
	return parts, limit
}

// dueDone takes in due records of parts. NextIn = 0 says that more is due already: the limit cut the answer, or records
// were locked. A negative NextIn says that no record waits for a time. Timers that became ready have new numbers; a
// read brings them.
func (d *Dispatcher) dueDone(result *core.DueResult, parts []core.RouteSlots, c *Call) {
	if c.err != nil {
		if fenced(c.err) {
			d.rejoin()
			return
		}
		for _, p := range parts {
			d.byName[p.Route].overdue.failed(c.sent)
		}
		d.timers.at = d.now.Add(d.calls.backoff(CallDue))
		return
	}
	// 1. Retries that were not in memory go into their keys.
	fresh := result.TimersReady > 0
	whole := result.NextIn != 0
	came := map[string]int{}
	for i := range result.Retries {
		rec := &result.Retries[i]
		if d.retried(rec) {
			fresh = true
			came[rec.Route]++
		}
	}
	// 2. Each route notes how far back it has been looked at, and whether all held retries came.
	for _, p := range parts {
		o := &d.byName[p.Route].overdue
		if o.came(came[p.Route]); whole {
			if o.answered(c.sent); o.narrow {
				d.timers.askBy(o.allAt)
			}
		}
	}
	// 3. The next Due is asked for when more is due. Without news a moment later: the retries were locked.
	d.timers.none = result.NextIn != 0 && !fresh
	if result.NextIn >= 0 {
		next := c.sent.Add(result.NextIn)
		if result.NextIn == 0 && !fresh {
			next = d.now.Add(dueAgain)
		}
		d.timers.askBy(next)
	}
	// 4. A read, or a Hold, brings timers that have new numbers.
	if result.TimersReady > 0 {
		for _, rt := range d.routes {
			rt.pace.wake(d.now)
			rt.queue.askNow(d.now)
		}
	}
}

// retried takes in a due retry, which is held now. It reports whether the retry is news. It is none if the record is in
// memory, since a later state of it comes again when that one is settled; if it was settled while the Due was under
// way; or if the waiting records of its partition are not known yet. Otherwise the retry goes to its place in its key,
// and its wait no longer blocks that.
func (d *Dispatcher) retried(rec *core.Record) (fresh bool) {
	rt := d.byName[rec.Route]
	if rt == nil {
		return false
	}
	if item := rt.known[rec.Seq]; item != nil {
		item.again = item.again || item.Record.Version < rec.Version
		return false
	}
	if settled, ok := rt.recent.due[rec.Seq]; ok && rec.Version <= settled {
		return false
	}
	if g := rt.groupOf(rec.Slot); g == nil || !g.loaded {
		rt.overdue.forget()
		return false
	}
	item := rt.newItem(rec)
	item.held, item.retry = true, true
	if !rt.ordered() || rec.Envelope.Key == "" {
		d.enqueue(item)
		return true
	}
	k := rt.key(rec.Envelope.Key, rec.Slot)
	item.key = k
	delete(k.blockers, rec.Seq)
	if k.asks {
		k.ask()
	}
	k.insert(item)
	d.advance(k)
	return true
}

type dueOp struct {
	d       *Dispatcher
	session core.Session
	parts   []core.RouteSlots
	limit   int
	result  core.DueResult
}

func (o *dueOp) do(ctx context.Context, s core.OutboxStore) (err error) {
	o.result, err = s.Due(ctx, o.session, o.parts, o.limit)
	return err
}
func (o *dueOp) done(c *Call) { o.d.dueDone(&o.result, o.parts, c) }
