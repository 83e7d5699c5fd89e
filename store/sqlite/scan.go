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
// at. Without such rows every claim begins at the first row.
type lap struct {
	pos     int64     // the next scan begins above this sequence
	from    int64     // where this lap began
	tail    int64     // the last sequence that was seen
	looked  int       // rows seen in this lap
	running bool      // a lap is going on
	wrapped bool      // it has passed the end
	since   time.Time // when pos left 0
	done    time.Time // when a lap over many rows ended without finding anything
}

func (st *scanState) lap(route string) *lap {
	l := st.laps[route]
	if l == nil {
		l = &lap{}
		st.laps[route] = l
	}
	return l
}

// scan looks at claimable rows from where the last claim stopped, and picks at most share. It stops when it has seen
// them all or its budget of rows is spent.
func (c *claimer) scan(ctx context.Context, l *lap, ro *core.RouteOrder, share int) error {
	now := time.Now()
	if l.pos > 0 && now.Sub(l.since) > lapTime {
		*l = lap{since: now, done: l.done}
	}
	if !l.running {
		*l = lap{pos: l.pos, from: l.pos, tail: l.pos, since: l.since, done: l.done, running: true}
	}
	budget := max(scanRows, 4*c.req.MaxRecords)
	w := &window{claimer: c, ro: ro, share: share, budget: budget, cut: map[string]bool{}}
	begin := l.pos
	for {
		last := int64(math.MaxInt64)
		if l.wrapped {
			last = l.from
		}
		if l.pos < last {
			if err := w.look(ctx, l, last); err != nil {
				return err
			}
		}
		if w.filled { // begin at the same place again: what was passed may be claimable soon
			c.claim.More = true
			*l = lap{pos: begin, since: l.since}
			return nil
		}
		if w.budget <= 0 && (!l.wrapped || l.pos < l.from) {
			c.claim.More = true
			if l.since.IsZero() {
				l.since = now
			}
			return nil
		}
		if l.wrapped || l.from == 0 {
			break
		}
		if rest := restTime - now.Sub(l.done); rest > 0 && w.picked == 0 {
			if c.claim.NextIn < 0 || c.claim.NextIn > rest {
				c.claim.NextIn = rest
			}
			*l = lap{pos: max(l.tail, l.pos), since: l.since, done: l.done}
			return nil
		}
		l.wrapped, l.pos = true, 0
	}
	// Everything was seen. If that took several claims, the next begins with what is new.
	if l.looked <= budget {
		*l = lap{}
	} else {
		*l = lap{pos: l.tail, since: now, done: now}
	}
	return nil
}

// window is what one claim sees of one route.
type window struct {
	*claimer
	ro     *core.RouteOrder
	share  int
	budget int
	picked int
	cut    map[string]bool // keys that end here
	filled bool            // there is more than fits
}

// look scans above l.pos up to last until the share is filled, the budget is spent or nothing is left.
func (w *window) look(ctx context.Context, l *lap, last int64) error {
	ordered := w.ro.Order == core.OrderPerKey
	rows, err := w.tx.StmtContext(ctx, w.st.scan).QueryContext(ctx, sql.Named("route", w.ro.Route), sql.Named("now", w.now),
		sql.Named("ordered", ordered), sql.Named("block", w.ro.BlockAfterAbandon),
		sql.Named("first", l.pos+1), sql.Named("last", last), sql.Named("limit", w.budget))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var seq, crashed int64
		var key sql.NullString
		var topic string
		var size sql.NullInt64
		var waits bool
		if err := rows.Scan(&seq, &key, &topic, &size, &crashed, &waits); err != nil {
			return err
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
			return nil
		default:
			w.picks, w.size = append(w.picks, seq), w.size+size.Int64
			w.share--
			w.picked++
		}
		w.budget--
		l.pos, l.looked, l.tail = seq, l.looked+1, max(l.tail, seq)
	}
	return rows.Err()
}
