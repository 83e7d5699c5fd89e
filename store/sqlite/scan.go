package sqlite

import (
	"context"
	"database/sql"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// lapTime is how long claims go on behind rows that cannot be claimed before they look at those again.
	lapTime = 5 * time.Second
	// restTime is how long claims do not look again at many rows of which none could be claimed, unless this process
	// settled something of the route or something became due.
	restTime = time.Second
	// scanRows is how many rows a claim looks at, at least.
	scanRows = 1000
)

// scanState is what a store remembers between claims. It is a matter of speed alone: losing it costs a lap.
type scanState struct {
	turn int
	laps map[string]*lap
}

// lap is where the claims of a route stand in a table that holds more rows that cannot be claimed than one claim looks
// at. Without such rows it is zero, and every claim looks at all claimable rows from the first one.
//
// The first lap goes from the first row to the last and so learns the tail. From then on every claim looks at what is
// new behind the tail, and laps over the rest go on beside that.
type lap struct {
	pos     int64     // the next look of the lap begins above this sequence
	tail    int64     // the last sequence of the rest; 0 = not known yet
	looked  int       // rows seen in this lap
	running bool      // a lap over the rest is going on
	since   time.Time // when it began
	done    time.Time // when it ended; zero = the next is due
}

func (st *scanState) lap(route string) *lap {
	l := st.laps[route]
	if l == nil {
		l = &lap{}
		st.laps[route] = l
	}
	return l
}

// scan looks at claimable rows and picks at most share. It stops when it has seen them all, or its budget of rows is
// spent; then the next claim goes on.
func (c *claimer) scan(ctx context.Context, l *lap, ro *core.RouteOrder, share int) error {
	w := &window{claimer: c, ro: ro, share: share, budget: max(scanRows, 4*c.req.MaxRecords), cut: map[string]bool{}, now: time.Now()}
	if l.tail == 0 {
		return w.firstLap(ctx, l)
	}
	parts := []func(context.Context, *lap) error{w.fresh, w.rest}
	if c.store.scans.turn%2 == 1 { // so that neither starves the other
		slices.Reverse(parts)
	}
	for _, part := range parts {
		if err := part(ctx, l); err != nil {
			return err
		}
		if w.filled || w.budget <= 0 {
			c.claim.More = true
			break
		}
	}
	return nil
}

// firstLap looks from the first row to the last, in one claim if it can.
func (w *window) firstLap(ctx context.Context, l *lap) error {
	if l.pos > 0 && w.now.Sub(l.since) > lapTime {
		*l = lap{}
	}
	begin := l.pos
	if begin == 0 {
		l.since = w.now
	}
	last, n, err := w.look(ctx, begin+1, math.MaxInt64)
	l.looked += n
	switch {
	case err != nil:
		return err
	case w.filled: // begin at the same place again: what was passed may be claimable soon
		w.claim.More = true
	case w.budget <= 0:
		l.pos = last
		w.claim.More = true
	case begin == 0:
		*l = lap{}
	default:
		*l = lap{tail: max(begin, last), done: w.now}
	}
	return nil
}

// fresh looks at what came behind the tail.
func (w *window) fresh(ctx context.Context, l *lap) error {
	last, _, err := w.look(ctx, l.tail+1, math.MaxInt64)
	if err == nil && !w.filled {
		l.tail = max(l.tail, last) // what could not be claimed belongs to the rest
	}
	return err
}

// rest goes on with the lap over everything up to the tail, or begins one if it is due.
func (w *window) rest(ctx context.Context, l *lap) error {
	if !l.running {
		if wait := restTime - w.now.Sub(l.done); wait > 0 && !l.done.IsZero() {
			if w.claim.NextIn < 0 || w.claim.NextIn > wait {
				w.claim.NextIn = wait
			}
			return nil
		}
		l.running, l.pos, l.looked, l.since = true, 0, 0, w.now
	}
	last, n, err := w.look(ctx, l.pos+1, l.tail)
	l.looked += n
	switch {
	case err != nil:
		return err
	case w.filled:
		if w.now.Sub(l.since) > lapTime {
			l.running, l.done = false, time.Time{}
		}
	case w.budget <= 0:
		l.pos = last
	case l.looked <= scanRows: // no need to remember anything any more
		*l = lap{}
	default:
		l.running, l.done = false, w.now
	}
	return nil
}

// window is what one claim sees of one route.
type window struct {
	*claimer
	ro     *core.RouteOrder
	share  int
	budget int
	now    time.Time       // for the pace of laps; leases go by the store's clock
	cut    map[string]bool // keys that end here
	filled bool            // there is more than fits
}

// look scans the sequences from first to last until the share is filled, the budget is spent or nothing is left. It
// returns the last sequence seen, or 0, and how many it saw.
func (w *window) look(ctx context.Context, first, last int64) (seen int64, n int, err error) {
	ordered := w.ro.Order == core.OrderPerKey
	rows, err := on(ctx, w.tx, w.st.scan).QueryContext(ctx, sql.Named("route", w.ro.Route), sql.Named("now", w.claimer.now),
		sql.Named("ordered", ordered), sql.Named("block", w.ro.BlockAfterAbandon),
		sql.Named("first", first), sql.Named("last", last), sql.Named("limit", w.budget))
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var seq, crashed int64
		var key sql.NullString
		var topic string
		var size sql.NullInt64
		var waits bool
		if err := rows.Scan(&seq, &key, &topic, &size, &crashed, &waits); err != nil {
			return seen, n, err
		}
		keyed := ordered && key.Valid
		waits = waits || crashed >= core.SuspectCrashes || keyed && w.cut[key.String] || slices.Contains(w.ro.SkipTopics, topic)
		switch {
		case waits && keyed:
			w.cut[key.String] = true
		case waits:
		case w.share < 1 || w.full || w.req.MaxBytes > 0 && len(w.picks) > 0 && w.size+size.Int64 > w.req.MaxBytes:
			w.full = w.full || w.share > 0
			w.filled = true
			return seen, n, nil
		default:
			w.picks, w.size = append(w.picks, seq), w.size+size.Int64
			w.share--
		}
		w.budget--
		seen, n = seq, n+1
	}
	return seen, n, rows.Err()
}
