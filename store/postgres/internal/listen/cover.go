package listen

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

// While a relay has said without a gap that it sleeps, each Stage that begins notifies it, and a relay that listens
// misses none of these. So a Wait sends no statement. That is the cover. It holds for a route from a read on that began
// under it, and before which all transactions had ended that may have staged without a notification. It ends for a
// route with a notification, until the route is read again, and for all when the connection is lost, or nothing was
// said in time.
//
// The cover is no reason to trust for long: a Wait looks every safetyPoll, as for messages that a program stages
// without notifications.

// cover is the present one.
type cover struct {
	number int64     // another one has another number
	conn   *pgx.Conn // the connection that listens
	since  time.Time // its first look was answered
	until  time.Time // it is said until then
	before int64     // transactions below it may have staged before; 0 = not known
}

// saidFor takes in the answer to a look that began at some time: it is said for left that this relay sleeps.
func (w *Waiter) saidFor(began time.Time, left time.Duration) {
	w.looked = began
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &w.cover
	if w.lapsed || c.conn != w.listener.conn || began.After(c.until) {
		*c = cover{number: c.number + 1, conn: w.listener.conn, since: time.Now()}
	}
	c.until = began.Add(left - asleepMargin/2)
}

// read takes in a result of a read that began at some time. It returns the number of the cover if the transactions that
// the read has missed are under it, or 0.
func (c *cover) read(began time.Time, result *core.ReadResult) int64 {
	if c.number == 0 || !began.After(c.since) || began.After(c.until) {
		return 0
	}
	if c.before == 0 {
		c.before = result.SnapshotXmax
	}
	for _, id := range result.RunningTxs {
		if id < c.before {
			return 0
		}
	}
	return c.number
}

// uncover ends the cover of a route, or of all, "", until it is read again. mu is held.
func (w *Waiter) uncover(route string) {
	for r, s := range w.seen {
		if r == route || route == "" {
			s.cover = 0
			w.seen[r] = s
		}
	}
}

// coveredFor returns for how long a Wait for routes needs no look. A relay with much to do looks all the same: it says
// no longer that it sleeps.
func (w *Waiter) coveredFor(routes []string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.listener.works() || w.cover.conn != w.listener.conn || w.gap < busyGap && time.Since(w.worked) < w.awake {
		return 0
	}
	for _, r := range routes {
		if s, ok := w.seen[r]; !ok || s.cover == 0 || s.cover != w.cover.number {
			return 0
		}
	}
	until := w.looked.Add(safetyPoll)
	if w.cover.until.Before(until) {
		until = w.cover.until
	}
	return time.Until(until)
}
