package dispatch

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A Read asks for everything in one ReadRequest: one round trip, and one snapshot, in which the parts of the answer fit
// each other. It asks for the owners and notices of all routes, the records that wait in new partitions, ranges of
// numbers, the next pages of keys, and records that were held or locked. Each group reads up to four kinds of ranges:
//
//   range       | numbers          | why
//   ------------|------------------|---------------------------------------------------------------------
//   rangeFront  | (cursor, …]      | new records
//   rangeLate   | (stable, cursor] | records of transactions that commit after the front has passed them
//   rangeWalk   | a known range    | a watched transaction ended, records were put back, a topic opened
//   rangeSweep  | (0, stable]      | everything, slowly, every five minutes: no rule relies on it

const (
	// waitingPage bounds the waiting records of new partitions in one read; againPage those that are read again.
	// noticeLimit is how many notices a store returns at most. sweepPage bounds the records of a step of a sweep.
	waitingPage = 2000
	againPage   = 200
	noticeLimit = 1000
	sweepPage   = 100
	// sweepShare is how many reads there are for one step of a sweep, at most. A sweep under way makes at least one
	// step in each sweepPause. sweepEvery is the pause between sweeps.
	sweepShare = 20
	sweepEvery = 5 * time.Minute
	sweepStep  = 1_000_000
	sweepPause = time.Second
	// lookEvery is how often a member reads owners and notices when it reads nothing else.
	lookEvery = 400 * time.Millisecond
)

type rangeKind uint8

const (
	rangeFront rangeKind = iota
	rangeLate
	rangeWalk
	rangeSweep
)

// asked is the purpose of one range of a read.
type asked struct {
	kind     rangeKind
	group    *group
	walk     *walk
	from, to int64
}

// reading is a read under way, and the purpose of each of its parts. Each slice below has as many elements as the part
// of the request, and of the result, in the same order.
type reading struct {
	request    core.ReadRequest
	parts      []*route // of request.Slots
	newlyOwned []*group // of request.NewlyOwned
	ranges     []asked  // of request.Ranges
	keys       []*key   // of request.Keys
	excluded   []bool   // of request.Keys: the front of the same read leaves out the key
	recheck    []*route // of request.Recheck
	routes     []*route // those whose ranges are read; parts has the others, too
}

// reads knows the read under way, and the work that waits until its result has been taken in.
type reads struct {
	routes   []*route // whose ranges are read
	count    int      // ranges read, to give sweeps their share
	takingIn bool     // a result is being taken in
	late     bool     // its record is of a late range
	touched  []*key   // to be advanced after the result
}

// reset forgets the read of a session that has ended.
func (r *reads) reset() { r.takingIn, r.late, r.touched = false, false, nil }

// readDue returns when the next read is due, for the route that is due first; zero = none.
func (d *Dispatcher) readDue() time.Time {
	var at time.Time
	for _, rt := range d.routes {
		if len(rt.groups) == 0 {
			continue
		}
		at = earliest(at, rt.readDue())
	}
	if !at.IsZero() && at.Before(d.calls.notBefore[CallRead]) {
		return d.calls.notBefore[CallRead]
	}
	return at
}

// readDue returns when a route is to be read. A new partition is read at once: nothing of it goes before. A route
// without room is read for its notices alone, since operators wait. Otherwise a rest from the last read, a record to
// be read again, an expiry or a sweep decides.
func (rt *route) readDue() time.Time {
	if slices.ContainsFunc(rt.groups, func(g *group) bool { return !g.loaded || g.loads }) {
		return rt.now
	}
	at := rt.gathered(rt.pace.readAt)
	if rt.room() <= 0 { // whatever the pause: operators wait
		at = rt.pace.askedAt.Add(lookEvery)
	} else if rt.pace.more || slices.ContainsFunc(rt.toRead, func(k *key) bool { return !k.slow }) {
		return rt.now
	}
	at = earliest(earliest(at, rt.revisits.next()), rt.expiryDue())
	for _, g := range rt.groups {
		if !rt.noSweeps && g.stable > 0 && !rt.now.Before(g.sweepAt) && rt.room() > 0 {
			at = earliest(at, later(rt.now, g.swept.Add(sweepPause)))
		}
	}
	return at
}

// gathered returns when a read that is due at some time is made: not within ReadEvery of the latest one, and when that
// has passed if the latest read had records.
func (rt *route) gathered(at time.Time) time.Time {
	if rt.opts.ReadEvery == 0 {
		return at
	}
	soonest := rt.pace.askedAt.Add(rt.opts.ReadEvery)
	if rt.gathering {
		return soonest
	}
	return later(at, soonest)
}

// read returns the next read, or nil. While partitions are released there is none: it could bring records of a
// partition that is about to go.
func (d *Dispatcher) read() *Call {
	if at := d.readDue(); d.calls.busy(CallRead) || d.releases.busy() || at.IsZero() || at.After(d.now) {
		return nil
	}
	r := d.newReading()
	d.reads.count++
	c := &Call{kind: CallRead}
	c.op = &readOp{d: d, session: d.session, r: r}
	d.calls.begin(c)
	d.reads.routes = r.routes
	clear(d.notices.gone)
	for _, rt := range d.routes {
		// This read shows all that was settled before.
		clear(rt.recent.read)
	}
	return c
}

// newReading puts together what is to be read now. Every route with partitions tells its owners and notices, also one
// that is not due: these cost little, and operators wait. The ranges and keys are of the routes that are due.
func (d *Dispatcher) newReading() *reading {
	r := &reading{request: core.ReadRequest{KnownLastSeq: d.db.last, KnownLastNotice: d.db.lastNotice, AfterNotice: d.notices.ask(), BlockingLimit: d.waitingPage, Bytes: d.opts.Bytes / 4}}
	keys := d.keyReads * d.keyDepth
	d.addNewlyOwned(r)
	for _, rt := range d.routes {
		at := rt.readDue()
		if len(rt.groups) == 0 {
			continue
		}
		d.expire(rt)
		r.request.Slots = append(r.request.Slots, core.RouteSlots{Route: rt.Name, Slots: rt.owned()})
		r.parts = append(r.parts, rt)
		if rt.Blocks {
			r.request.BlockingRoutes = append(r.request.BlockingRoutes, rt.Name)
		}
		d.addRechecks(r, rt)
		if at.After(d.now) {
			continue
		}
		rt.pace.askedAt, rt.pace.again = d.now, false
		r.routes = append(r.routes, rt)
		if room := rt.room(); room > 0 {
			excluded := d.addRanges(r, rt, room)
			// Only together with the late range; see hazard.
			keys -= d.addKeys(r, rt, min(keys, rt.fit(keys)), excluded)
		}
	}
	return r
}

// addNewlyOwned adds groups whose waiting records are to be read: those behind the same number. Of a new partition
// nothing is handed out before, so that new ones go first.
func (d *Dispatcher) addNewlyOwned(r *reading) {
	after, found, isNew := int64(0), false, false
	for _, rt := range d.routes {
		for _, g := range rt.groups {
			if g.beginLoad(); !g.loaded && !isNew || g.loads && !found {
				after, found, isNew = g.newlyOwnedAfter, true, !g.loaded
			}
		}
	}
	r.request.NewlyOwnedAfter = after
	for _, rt := range d.routes {
		for _, g := range rt.groups {
			if (!g.loaded || g.loads) && g.newlyOwnedAfter == after {
				r.request.NewlyOwned = append(r.request.NewlyOwned, core.RouteSlots{Route: rt.Name, Slots: g.slots})
				r.newlyOwned = append(r.newlyOwned, g)
			}
		}
	}
}

// addRanges adds the ranges of a route's groups, and returns the keys that its fronts leave out. The width of each
// range is bounded, not only its number of records: deleted rows between them cost as much as live ones, as long as an
// old snapshot keeps them. Records in memory are skipped, so that they do not fill the limit of a range that was read
// before. When the route is crowded, the front and the walks wait. The late scan goes on, since the pages of keys must
// fit it.
func (d *Dispatcher) addRanges(r *reading, rt *route, room int) (excluded map[string]bool) {
	excluded = map[string]bool{}
	add := func(g *group, kind rangeKind, w *walk, from, to int64, limit int) *core.Range {
		q := core.Range{RouteSlots: core.RouteSlots{Route: rt.Name, Slots: g.slots}, AfterSeq: from, UpToSeq: to, KeyedOnly: rt.Queue, Limit: limit}
		r.request.Ranges = append(r.request.Ranges, q)
		r.ranges = append(r.ranges, asked{kind, g, w, from, to})
		return &r.request.Ranges[len(r.request.Ranges)-1]
	}
	limit := min(d.opts.Batch, room)
	crowded := rt.crowded()
	for _, g := range rt.groups {
		if !g.loaded {
			continue
		}
		if g.sweeps(d) {
			g.swept = d.now
			add(g, rangeSweep, nil, g.sweep, min(g.stable, g.sweep+sweepStep), min(limit, sweepPage))
		}
		walks := g.walks[:min(len(g.walks), 2)]
		if crowded {
			walks = nil
		}
		for _, w := range walks {
			w.asked = true
			q := add(g, rangeWalk, w, w.pos, min(w.to, w.pos+step), limit)
			q.ExcludeSeqs = rt.knownIn(g, q.AfterSeq, q.UpToSeq)
			q.Limit += len(q.ExcludeSeqs)
		}
		deep, passed := rt.deepKeys(g)
		if g.late < g.cursor {
			q := add(g, rangeLate, nil, g.late, min(g.cursor, g.late+step), limit)
			q.ExcludeSeqs = rt.knownIn(g, q.AfterSeq, q.UpToSeq)
			q.Limit += len(q.ExcludeSeqs) + min(passed, sweepPage) // it meets these again
		}
		to := int64(math.MaxInt64)
		if d.db.last > g.cursor+step {
			to = g.cursor + step
		}
		if crowded {
			to = g.cursor // nothing: the late range alone is read, for the keys
		}
		q := add(g, rangeFront, nil, g.cursor, to, limit)
		q.ExcludeKeys = deep
		for _, k := range q.ExcludeKeys {
			excluded[k] = true
		}
	}
	return excluded
}

// sweeps reports whether the next step of a sweep is due.
func (g *group) sweeps(d *Dispatcher) bool {
	return !d.noSweeps && g.sweep < g.stable && !d.now.Before(g.sweepAt) && (d.reads.count%sweepShare == 0 || d.now.Sub(g.swept) >= sweepPause)
}

// deepKeys returns keys by how many of their records the front has passed, most first, and the sum of these. Such a key
// would fill each read of the front with records that cannot go, so the front leaves it out. Its records are read by
// key.
func (rt *route) deepKeys(g *group) (names []string, passed int) {
	if len(rt.deep) == 0 {
		return nil, 0
	}
	rt.deep = slices.DeleteFunc(rt.deep, func(k *key) bool {
		k.deep = !k.dropped && k.passed > rt.keyDepth/4
		return !k.deep
	})
	var deep []*key
	for _, k := range rt.deep {
		if k.resume > 0 && k.resume <= g.cursor && g.slots.Has(k.slot) {
			deep = append(deep, k)
		}
	}
	slices.SortFunc(deep, func(a, b *key) int { return cmp.Or(cmp.Compare(b.passed, a.passed), cmp.Compare(a.name, b.name)) })
	for _, k := range deep[:min(len(deep), rt.maxExcluded)] {
		names = append(names, k.name)
		passed += k.passed
	}
	return names, passed
}

// addKeys adds keys of a route whose next page must be read, up to a number of records. It returns how many may come. A
// page begins at the hazard of the group, if that is before the passed records: an earlier record of the key may have
// appeared since. A key in doubt begins at its start, which shows everything that blocks it. A short key gets a small
// page, so that one read serves many.
func (d *Dispatcher) addKeys(r *reading, rt *route, limit int, excluded map[string]bool) (n int) {
	var rest []*key
	defer func() {
		if len(rest) > 0 {
			rt.toRead = append(rest, rt.toRead...)
		}
	}()
	for n < limit && len(rt.toRead) > 0 {
		k := rt.toRead[0]
		rt.toRead[0], rt.toRead = nil, rt.toRead[1:]
		g := rt.groupOf(k.slot)
		if g == nil {
			k.listed = false
			continue
		}
		if !g.loaded { // a notice came before the waiting records
			rest = append(rest, k)
			continue
		}
		if k.resume > g.cursor && !k.anew { // the front will bring its records
			k.resume, k.passed, k.listed = 0, 0, false
			d.advance(k)
			continue
		}
		from := min(k.resume-1, g.hazard())
		if k.anew {
			from = 0
		}
		depth := d.keyDepth
		if k.isShort() {
			depth = max(depth/shortShare, 1)
		}
		k.asked, k.stale = k.resume, false
		r.request.Keys = append(r.request.Keys, core.KeyRange{Route: rt.Name, Key: k.name, AfterSeq: from, UpToSeq: g.cursor, Limit: depth})
		r.keys = append(r.keys, k)
		r.excluded = append(r.excluded, excluded[k.name])
		n += depth
	}
	return n
}

// addRechecks adds records that other sessions held, or that were locked. Each goes back in line at once, since the
// answer can be lost.
func (d *Dispatcher) addRechecks(r *reading, rt *route) {
	if len(rt.revisits.tries) > 4*d.recheckPage { // of records that are gone
		clear(rt.revisits.tries)
	}
	for n := 0; n < min(d.recheckPage, rt.fit(d.recheckPage)) && len(rt.revisits.line) > 0 && !rt.revisits.line[0].at.After(d.now); n++ {
		v := rt.revisits.line[0]
		r.request.Recheck = append(r.request.Recheck, v.ref)
		r.recheck = append(r.recheck, rt)
		rt.revisits.put(v, d.now.Add(againAfter))
	}
}

type readOp struct {
	d       *Dispatcher
	session core.Session
	r       *reading
	result  core.ReadResult
}

func (o *readOp) do(ctx context.Context, s core.OutboxStore) (err error) {
	o.result, err = s.Read(ctx, o.session, o.r.request)
	return err
}
func (o *readOp) done(c *Call) { o.d.readDone(o.r, &o.result, c) }
