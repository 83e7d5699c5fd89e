package postgres

import (
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	shards = 64
	// lapEvery is how often at least the rows behind the position are visited.
	lapEvery = time.Second
	// cheapLap is what a lap may take in the database to be run whenever a claim comes out short. A longer one is run
	// at most a tenth of the time: old snapshots elsewhere can leave hundreds of thousands of dead index entries there.
	cheapLap = 25 * time.Millisecond
	lapShare = 10
	// maxBusy is how many claims in a row may find nothing but rows that others hold, before the caller is told to wait.
	maxBusy  = 20
	busyWait = 20 * time.Millisecond
)

// claimer keeps, in memory, where the next claim should look. It only guides: losing it costs one lap. It is safe for
// concurrent use.
type claimer struct {
	promote, lock, unkeyed, keyed                string
	front, takeFront, frontKeyed, takeFrontKeyed string
	class                                        int32
	serial                                       atomic.Uint32 // of claims, for their tokens

	mu      sync.Mutex
	at      map[string]*position
	turn    int // the shard to begin with, so that a small share comes round
	share   int // key shards to try; fewer while other relays claim too
	short   bool
	held    bool
	busy    int
	plain   int // claims in a row that met no row whose key must be kept in order
	general int // claims that do not try the front alone
	past    horizon
	skipped map[laneKey]bool  // keys that the latest claim was to leave
	leased  map[int64]int     // how many records have a token, of claims of which nothing was settled
	own     map[int64]laneKey // keyed records that were claimed and not settled, by sequence
}

// plainClaims is after how many claims in a row without keyed rows the cheaper statement is tried.
const plainClaims = 50

// leastShare is the least share of key shards to try.
const leastShare = 8

// maxPassed bounds what is remembered of rows that were passed, and of own records. Beyond it laps find them.
const maxPassed = 50_000

// maxLeased bounds the claims of which it is remembered how many records they have.
const maxLeased = 1000

type laneKey struct{ route, key string }

// position is where a route's claims are. Everything up to front was looked at once. A lap visits it again, for what
// was committed late, released, promoted, or whose lease ended.
type position struct {
	front   int64
	lapping bool
	lap     int64 // the lap has come to here
	lapEnd  int64
	lapTook time.Duration
	ended   time.Time // of the latest lap
	dirty   bool      // something behind is known to be claimable

	// Nothing that was staged and not put off since is below floor. It comes from the least row that a lap met, and
	// from what was settled when the lap began. Looking for earlier records of a key may begin there, which spares the
	// dead index entries below.
	floor, lapLeast, lapSettled int64

	// Rows that the front passed because another record of their key was in progress. When it is settled, a claim looks
	// at the spot.
	passed  map[string][]int64 // sequences by key, ascending
	nPassed int
	freed   []int64 // where to look, ascending
	lapTurn bool    // look at the lap next, not at a spot

	// A front at which there are only rows of keys in progress stays there until some are settled: mostly that is soon,
	// and they need not be found again. It moves on for a small part of the time, for what other keys have behind them.
	stalled bool
	walkAt  time.Time

	late bool // more may be due than came in line: see catchUp
}

// horizon finds out up to which sequence every staging transaction has ended, so that nothing can appear below.
type horizon struct {
	settled  int64 // the answer
	sequence int64 // given out by now; settled once every transaction before xmax has ended
	xmax     int64 // 0: not yet taken
	taken    time.Time
}

// horizonDelay is how long after a sequence was given out its transaction has its id at the latest: the two are taken
// within one row's insert.
const horizonDelay = time.Second

// advance goes on by the answer to a claim that began at a time. Every transaction that has its id by then is before a.xmax.
func (h *horizon) advance(a *answer, began time.Time) {
	switch {
	case h.taken.IsZero():
		h.sequence, h.taken = a.sequence, time.Now()
	case h.xmax == 0:
		if began.Sub(h.taken) >= horizonDelay {
			h.xmax = a.xmax
		}
	case a.xmin >= h.xmax:
		h.settled, h.sequence, h.xmax, h.taken = h.sequence, a.sequence, 0, time.Now()
	}
}

func (c *claimer) init(n names) {
	c.front, c.takeFront = n.sql(frontSQL), n.sql(takeFrontSQL)
	c.frontKeyed, c.takeFrontKeyed = n.sql(frontKeyedSQL), n.sql(takeFrontKeyedSQL)
	c.promote, c.lock, c.unkeyed, c.keyed, c.class = n.sql(promoteSQL), n.sql(lockSQL), n.sql(claimUnkeyedSQL), n.sql(claimKeyedSQL), n.lockClass()
	c.plain = plainClaims - 2 // if the first claims meet no keys, try it soon
	c.serial.Store(rand.Uint32())
	c.at, c.own = map[string]*position{}, map[int64]laneKey{}
	c.leased = map[int64]int{}
	c.skipped = map[laneKey]bool{}
	c.share = shards
}

// token returns what tells a session's leases from others, and a token for one claim: its upper half is the session.
// Fencing tokens need to be different, not secret. Without a session nothing is the claimer's own.
func (c *claimer) token(session int64) (own, token int64) {
	low := int64(c.serial.Add(1))
	if session == 0 {
		return math.MaxInt64, int64(rand.Uint32()|1)<<32 | low
	}
	half := int32(session) ^ int32(session>>32)
	if half == 0 {
		half = 1
	}
	return int64(half), int64(half)<<32 | low
}

// rangeKind says why a range is looked at.
type rangeKind uint8

const (
	frontRange rangeKind = iota
	lapRange
	spotRange
)

// view is what one claim looks at: ranges, as columns.
type view struct {
	began         time.Time
	statement     string
	simple        bool                 // claimFront may do
	settled       int64                // see horizon
	promoted      map[string]promotion // by route
	names         []string             // the routes, once each
	routes        []string
	lo, hi, floor []int64
	keyed, block  []bool
	kinds         []rangeKind
	window        int
	records       int
	bytes         int64
	skip          []string
	shards        []int32
}

func (c *claimer) plan(req *core.ClaimRequest) *view {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := &view{began: time.Now(), window: req.MaxRecords + req.MaxRecords/4 + 20, records: req.MaxRecords, bytes: req.MaxBytes, skip: []string{}, promoted: map[string]promotion{}}
	if req.Alone {
		v.records = 1
	}
	if v.bytes <= 0 {
		v.bytes = math.MaxInt64
	}
	keyed := false
	for i := range req.Routes {
		r := &req.Routes[i]
		p := c.position(req, r.Route)
		if !req.Alone {
			c.skip(r, p)
		}
		if p.lapDue(c.short || req.Alone) {
			p.lapping, p.lap, p.lapEnd, p.lapTook, p.dirty = true, 0, p.front, 0, false
			p.lapLeast, p.lapSettled = p.front+1, c.past.settled
		}
		v.names = append(v.names, r.Route)
		v.add(r, p.front, math.MaxInt64, p.floor, frontRange)
		switch spot := len(p.freed) > 0; {
		case spot && (!p.lapping || !p.lapTurn): // not both: they may overlap
			v.add(r, p.freed[0]-1, p.front, p.floor, spotRange)
			p.lapTurn = true
		case p.lapping:
			v.add(r, p.lap, p.lapEnd, p.floor, lapRange)
			p.lapTurn = false
		}
		keyed = keyed || r.Order == core.OrderPerKey
		for _, t := range r.SkipTopics {
			v.skip = append(v.skip, r.Route+"\x1f"+t)
		}
		for _, k := range r.SkipKeys {
			v.skip = append(v.skip, r.Route+"\x1e"+k)
		}
	}
	v.statement = c.unkeyed
	if keyed && c.plain < plainClaims || req.Alone {
		c.minding(v)
	}
	v.simple = c.mayBeSimple(v) && !req.Alone
	v.settled = c.past.settled
	c.general = max(c.general-1, 0)
	return v
}

// minding makes v a look at rows whose key must be kept in order.
func (c *claimer) minding(v *view) { v.statement, v.shards = c.keyed, c.pickShards() }

// skip notes which keys are to be left, and looks at the spots of those that are not any more.
func (c *claimer) skip(r *core.RouteOrder, p *position) {
	if len(c.skipped) == 0 && len(r.SkipKeys) == 0 {
		return
	}
	now := make(map[laneKey]bool, len(r.SkipKeys))
	for _, k := range r.SkipKeys {
		now[laneKey{r.Route, k}] = true
	}
	for lane := range c.skipped {
		if lane.route == r.Route && !now[lane] {
			delete(c.skipped, lane)
			p.free(lane.key)
		}
	}
	maps.Copy(c.skipped, now)
}

// free makes claims look at the first row of key that was passed.
func (p *position) free(key string) {
	if len(p.passed[key]) == 0 {
		return
	}
	spot := p.passed[key][0]
	if n, found := slices.BinarySearch(p.freed, spot); !found {
		p.freed = slices.Insert(p.freed, n, spot)
	}
}

// position returns a route's position. Looking for suspects passes over the others, so it has its own.
func (c *claimer) position(req *core.ClaimRequest, route string) *position {
	if req.Alone {
		route = "alone\x1f" + route
	}
	p := c.at[route]
	if p == nil {
		p = &position{}
		c.at[route] = p
	}
	return p
}

// lapDue reports whether to begin a lap. After a claim that came out short is a good time.
func (p *position) lapDue(short bool) bool {
	if p.lapping || p.front == 0 {
		return false
	}
	since := time.Since(p.ended)
	rested := since >= lapShare*p.lapTook
	return p.dirty || since >= lapEvery && rested || short && (p.lapTook <= cheapLap || rested)
}

func (v *view) add(r *core.RouteOrder, lo, hi, floor int64, kind rangeKind) {
	v.routes = append(v.routes, r.Route)
	v.lo, v.hi, v.floor = append(v.lo, lo), append(v.hi, hi), append(v.floor, floor)
	v.keyed, v.block = append(v.keyed, r.Order == core.OrderPerKey), append(v.block, r.Order == core.OrderPerKey && r.BlockAfterAbandon)
	v.kinds = append(v.kinds, kind)
}

// pickShards returns the shards to try: all, or a share of them that goes round while other relays claim at the same time.
func (c *claimer) pickShards() []int32 {
	start := c.turn
	if c.share == shards {
		start = rand.IntN(shards)
	}
	s := make([]int32, c.share)
	for i := range s {
		s[i] = int32((start + i) % shards)
	}
	c.turn = (start + c.share) % shards
	return s
}

// advance moves the positions by what a claim saw, and answers the caller.
func (c *claimer) advance(req *core.ClaimRequest, v *view, a *answer) core.Claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := core.Claim{Records: a.records, Suspects: a.suspects, NextIn: -1}
	c.past.advance(a, v.began)
	if c.plain++; a.keyed {
		c.plain = 0
	}
	if n := len(v.shards); n > 0 {
		switch got := bits.OnesCount64(a.shards); {
		case got < n:
			c.share = max(c.share/2, leastShare)
		case c.share < shards:
			c.share = min(2*c.share, shards)
		}
	}
	next := func(d time.Duration) {
		if claim.NextIn < 0 || d < claim.NextIn {
			claim.NextIn = max(d, 0)
		}
	}
	var progress, remaining, stalled bool // there are rows to look at next; rows that could have been claimed were left
	lapped := map[string]bool{}
	for i, route := range v.routes {
		p := c.position(req, route)
		full := a.rows[i] >= int64(v.window) || v.simple && a.rows[i] >= int64(v.records)
		left := a.remaining[i] > 0
		if a.rows[i] > 0 && a.least[i] < p.floor { // what was settled is back: the database was restored
			p.floor = 0
		}
		remaining = remaining || left
		switch v.kinds[i] {
		case frontRange:
			p.stalled = false
			switch {
			case a.sequence < p.front: // the database was restored to an earlier time
				*p, c.past = position{}, horizon{}
				progress = true
			case left:
				p.pass(a, i, a.remaining[i]-1)
			case a.rows[i] > 0:
				p.raiseFloor(v, a)
				to := p.frontAfter(a, i, v.lo[i])
				p.pass(a, i, to)
				progress = progress || full && !p.stalled
				stalled = stalled || p.stalled
			}
		case lapRange:
			lapped[route] = true
			p.lapTook += microsDuration(a.took)
			if a.rows[i] > 0 {
				p.lapLeast = min(p.lapLeast, a.least[i])
			}
			switch {
			case left:
				p.lap = a.remaining[i] - 1
			case full:
				p.lap = a.last[i]
			default:
				p.lapping, p.ended = false, time.Now()
				p.floor = min(p.lapLeast, p.lapSettled+1)
			}
			progress = progress || p.lapping
			p.noteSpots(a, i)
		case spotRange:
			p.noteSpots(a, i)
			seen := int64(math.MaxInt64)
			if left {
				seen = a.remaining[i] - 1
			} else if full {
				seen = a.last[i]
			}
			n, _ := slices.BinarySearch(p.freed, seen+1)
			p.freed = slices.Delete(p.freed, 0, n)
			if left && (len(p.freed) == 0 || p.freed[0] != seen+1) {
				p.freed = slices.Insert(p.freed, 0, seen+1)
			}
			progress = progress || len(p.freed) > 0
		}
	}
	for _, route := range v.names {
		if p := c.at[route]; p != nil { // not the position of suspects: they are few
			did := v.promoted[route]
			p.promoted(did, promoteStep)
			progress = progress || did.rows > 0 && did.least <= p.front && !req.Alone
		}
	}
	resting := stalled && len(a.records) > 0 // wait for a settle; an empty claim must have looked behind
	if !req.Alone {
		c.short, c.held = len(a.records) < req.MaxRecords && !remaining && !resting, a.held
	}
	c.remember(req, a.records)
	late := a.timerIn != nil && *a.timerIn <= 0 // what came due is not all in line: there is too much, or others have it
	if a.timerIn != nil && !late {
		next(microsDuration(*a.timerIn))
	}
	claim.More = progress || remaining || late || len(a.records) >= v.records && !req.Alone && !stalled
	if a.leaseIn != nil {
		next(microsDuration(*a.leaseIn))
	}
	// An empty claim counts only if what is behind was looked at too.
	for _, route := range v.names {
		p := c.position(req, route)
		if p.front == 0 || p.lapping || lapped[route] {
			continue
		}
		if p.stalled {
			next(time.Until(p.walkAt))
		}
		if wait := p.untilLap(resting); wait > 0 {
			next(wait)
		} else {
			claim.More = true
		}
	}
	if len(a.records) > 0 || !remaining && !late || progress || len(v.promoted) > 0 {
		c.busy = 0
	} else if c.busy++; c.busy > maxBusy { // somebody has locked rows for long: do not spin
		claim.More = false
		next(busyWait)
	}
	return claim
}

// untilLap returns how long a claim that comes out short must wait for the next lap.
func (p *position) untilLap(resting bool) time.Duration { //nolint:revive // a fact, not a mode
	if resting && !p.dirty {
		return max(lapEvery, lapShare*p.lapTook) - time.Since(p.ended)
	}
	if p.dirty || p.lapTook <= cheapLap {
		return 0
	}
	return lapShare*p.lapTook - time.Since(p.ended)
}

// frontAfter returns where the front goes after a claim that left nothing claimable in range i, which begins after lo.
func (p *position) frontAfter(a *answer, i int, lo int64) int64 {
	last, open := a.last[i], max(a.open[i], a.least[i]-1)
	if last-open < max((last-max(lo, a.least[i]-1))/8, 1) || !slices.Contains(a.busyRange, int64(i)+1) {
		return last // not much at the end is held
	}
	if now := time.Now(); open < a.least[i] && now.After(p.walkAt) {
		p.walkAt = now.Add(lapShare * microsDuration(a.took))
		return last
	}
	p.stalled = true
	return open
}

// pass moves the front to seq, and remembers which rows of keys in progress it passes.
func (p *position) pass(a *answer, i int, seq int64) {
	p.front = max(seq, p.front)
	for j, s := range a.busySeq {
		if s > seq {
			break
		}
		if a.busyRange[j] != int64(i)+1 {
			continue
		}
		if p.nPassed >= maxPassed { // forget them, and look at everything
			p.passed, p.nPassed, p.dirty = nil, 0, true
		}
		if p.passed == nil {
			p.passed = map[string][]int64{}
		}
		p.passed[a.busyKey[j]] = append(p.passed[a.busyKey[j]], s)
		p.nPassed++
	}
}

// noteSpots remembers where the rest begins of the keys of which range i, behind the front, had more than could be claimed.
func (p *position) noteSpots(a *answer, i int) {
	for j, s := range a.busySeq {
		rows := p.passed[a.busyKey[j]]
		if a.busyRange[j] != int64(i)+1 || len(rows) > 0 && rows[0] <= s {
			continue
		}
		if p.passed == nil {
			p.passed = map[string][]int64{}
		}
		p.passed[a.busyKey[j]] = slices.Insert(rows, 0, s)
		p.nPassed++
	}
}

// unpass forgets the rows of key up to seq.
func (p *position) unpass(key string, seq int64) {
	rows, ok := p.passed[key]
	if !ok {
		return
	}
	n, _ := slices.BinarySearch(rows, seq+1)
	p.nPassed -= n
	if rows = rows[n:]; len(rows) == 0 {
		delete(p.passed, key)
		return
	}
	p.passed[key] = rows
}

// remember notes which keys are in progress here.
func (c *claimer) remember(req *core.ClaimRequest, records []core.Record) {
	if len(c.own)+len(records) > maxPassed { // some were never settled
		clear(c.own)
	}
	if len(c.leased) >= maxLeased {
		clear(c.leased)
	}
	if len(records) > 0 {
		c.leased[records[0].Lease.Token] = len(records)
	}
	for i := range records {
		r := &records[i]
		if r.Envelope.Key == "" {
			continue
		}
		for j := range req.Routes {
			if req.Routes[j].Route == r.Route && req.Routes[j].Order == core.OrderPerKey {
				c.own[r.Seq] = laneKey{r.Route, r.Envelope.Key}
				if p := c.at[r.Route]; p != nil {
					p.unpass(r.Envelope.Key, r.Seq)
				}
			}
		}
	}
}

// whole reports whether seqs, which are sorted, are all records of a claim, each once, and close together.
func (c *claimer) whole(token int64, seqs []int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(seqs)
	if c.leased[token] != n || seqs[n-1]-seqs[0] >= 2*int64(n) {
		return false
	}
	for i := 1; i < n; i++ {
		if seqs[i] == seqs[i-1] {
			return false
		}
	}
	return true
}

// settled notes that records were settled, and reports whether that may have made some claimable: those put back, or
// those of keys that were held.
func (c *claimer) settled(outcomes []core.Outcome, putBack bool) bool { //nolint:revive // a fact, not a mode
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range outcomes {
		seq := outcomes[i].Seq()
		delete(c.leased, outcomes[i].Token())
		lane, ok := c.own[seq]
		if !ok {
			continue
		}
		delete(c.own, seq)
		if p := c.at[lane.route]; p != nil && !c.skipped[lane] {
			p.free(lane.key)
		}
	}
	if putBack {
		for _, p := range c.at {
			p.dirty = true
		}
	}
	return putBack || c.held
}

// holding reports whether the latest claim left rows of keys that something earlier holds.
func (c *claimer) holding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}
