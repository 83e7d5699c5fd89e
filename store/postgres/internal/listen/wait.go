package listen

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/conns"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

const (
	// safetyPoll is how often at least a waiting relay looks for itself, until nothing has happened for calmFor.
	// Then pauses double to deepPoll: no transaction is under way that could have staged before the relay said that
	// it sleeps, so that each Stage notifies. Where notifications may not arrive, or a transaction is open that the
	// relay must read, it is always safetyPoll.
	safetyPoll = 500 * time.Millisecond
	calmFor    = 30 * time.Second
	deepPoll   = 20 * time.Second
	// mostWait bounds the times that DueIn remembers: a relay asks for due records more often.
	mostWait = time.Hour
	// lookLimit is how long the answer to a look may take. Then the connection is cut, and another one asks.
	lookLimit = 5 * time.Second
	// firstPoll is the first pause after there was work; pauses double from there to safetyPoll.
	firstPoll = 5 * time.Millisecond
	// asleepMargin is how much longer than until the next poll staging goes on to notify at least, and half of the
	// pause more. To say so takes a transaction id. So one relay says it for tellFor safety polls, for itself and
	// for all others that sleep.
	asleepMargin = 10 * time.Millisecond
	tellFor      = 4
	// A relay that gets a record more often than every busyGap, and had one awakeFor ago or less, looks again every
	// nap, and does not announce that it sleeps. Under load there is more by then, so that one read takes what many
	// transactions staged and no commit has to notify: those that do wait for each other's flush to disk. Where the
	// answer to a look takes longer than a nap, a notification is sooner than the next look, and a look is as dear
	// as a read: if it would find something as likely as not, the relay reads at once instead.
	nap      = time.Millisecond
	awakeFor = 20 * nap
	busyGap  = 4 * nap
)

// sleepSQL says until when this relay sleeps, in a sequence: it is read live in every isolation level, needs no lock,
// and expires by itself. It writes only if no relay has said so for at least $1 ms, under the advisory lock %d: of two
// that write at a time, the later one must not shorten what the other has said. It does not wait for the lock, which
// each role of the database can take and keep; without the lock it says nothing. It also tells whether anything was
// staged or decided, which transactions have ended, and whether it is said now and was until now. It says so first.
const (
	sleepSQL = `
SELECT coalesce(s.until - t.now, 0), ` + DrawnSQL + `, s.until IS NOT NULL AND w.last_value >= t.now
FROM {wake} w CROSS JOIN (SELECT (extract(epoch FROM clock_timestamp()) * '1000')::bigint AS now) t
CROSS JOIN LATERAL (SELECT CASE WHEN w.last_value >= t.now + $1::bigint THEN w.last_value ELSE (
        SELECT setval({wake_text}, greatest(v.last_value, t.now + $2::bigint))
        FROM (SELECT pg_try_advisory_xact_lock(%d) AS taken OFFSET 0) l
        CROSS JOIN LATERAL (SELECT v.last_value FROM {wake} v WHERE l.taken OFFSET 0) v
    ) END AS until OFFSET 0) s`
	lookSQL = `SELECT 0::bigint, ` + DrawnSQL + `, true`
)

// DrawnSQL are the columns that [Waiter.Saw] takes.
const DrawnSQL = `{last}, {last_notice}, pg_snapshot_xmin(pg_current_snapshot())::text::bigint`

var errTwice = dberr.Misconfigured("wait", "two relays or table queues have the same store value: "+
	"make one for each, on the same pool; until then they poll")

// Options says where and how to wait.
type Options struct {
	Conns conns.Source
	Names schema.Names
	// Off makes it poll only, and show no presence.
	Off bool
	// Logger returns the log for rare events.
	Logger func() *slog.Logger
}

// Waiter lets one relay sleep. Make it with New.
type Waiter struct {
	conns       conns.Source
	sleep, look string
	listener    listener      // only Wait uses it, one call at a time
	trip        time.Duration // as short as a look is of late; only Wait uses it
	lapsed      bool          // at or before the latest look no relay says that it sleeps; only Wait uses it
	looked      time.Time     // the latest look that said so; only Wait uses it
	presence    presence

	mu         sync.Mutex
	cover      cover
	seen       map[string]seen      // by route, as of the latest read
	lastNotice int64                // as of the latest read
	worked     time.Time            // when a read last had records
	gap        time.Duration        // between records of late
	fresh      bool                 // the latest read had records
	waits      bool                 // Wait is under way
	twice      bool                 // two Waits were under way at a time
	routes     []string             // what it waits for
	dueAt      map[string]time.Time // when something of a route comes due
	calmFrom   time.Time            // when something last happened
	calm, deep time.Duration        // calmFor and deepPoll
	// when a read last had records although Wait had not returned: another process wakes the relay
	helped time.Time
	pause  time.Duration
	awake  time.Duration      // awakeFor
	hint   bool               // somebody called Wake
	stir   context.CancelFunc // ends the present sleep
}

// New returns a Waiter. It connects at the first Wait or Acquire.
func New(o Options) *Waiter {
	w := &Waiter{
		conns: o.Conns, sleep: o.Names.SQL(fmt.Sprintf(sleepSQL, announceLock(o.Names.Channel()))), look: o.Names.SQL(lookSQL),
		listener: newListener(o), presence: presence{conns: o.Conns, off: o.Off, logger: o.Logger},
		seen: map[string]seen{}, dueAt: map[string]time.Time{}, pause: firstPoll, awake: awakeFor, calm: calmFor, deep: deepPoll, calmFrom: time.Now(),
	}
	w.listener.others = func(route string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.uncover(route)
	}
	return w
}

// announceLock is the number of the advisory lock under which relays of a channel say that they sleep. It is one of
// those that no other program may use.
func announceLock(channel string) int64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, channel) // never fails
	return tokenFrom + int64(h.Sum64()>>2)
}

// seen is what a read of a route knew: the last numbers that were drawn, from which mark on there are only transactions
// that it has not missed, 0 if it missed none, and the cover under which each transaction notifies that it missed, 0 if
// there was none.
type seen struct{ last, lastNotice, before, cover int64 }

// Read notes what a read that began at some time saw of the routes that it read up to the last number, and that it had
// records.
func (w *Waiter) Read(began time.Time, request *core.ReadRequest, result *core.ReadResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// The number of notices was looked up after the snapshot: it may not show the newest ones.
	s := seen{last: result.LastSeq, lastNotice: w.lastNotice, cover: w.cover.read(began, result)}
	w.lastNotice = result.LastNotice
	if len(result.RunningTxs) > 0 || result.LastSeqXmax > result.SnapshotXmax {
		s.before = max(result.SnapshotXmax, result.LastSeqXmax)
	}
	worked := 0
	for i := range request.Ranges {
		rg := &request.Ranges[i]
		worked += len(result.Ranges[i].Records)
		switch {
		case result.Ranges[i].More:
			delete(w.seen, rg.Route)
		case rg.UpToSeq >= result.LastSeq:
			w.seen[rg.Route] = s
		}
	}
	if w.fresh = worked > 0; w.fresh {
		now := time.Now()
		w.gap += (min(now.Sub(w.worked), awakeFor)/time.Duration(worked) - w.gap) / 4
		w.pause, w.worked, w.calmFrom = firstPoll, now, now
		if w.waits {
			w.helped = now
		}
	}
}

// Wake ends the present or else the next Wait at once.
func (w *Waiter) Wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hint = true
	if w.stir != nil {
		w.stir()
	}
}

// Wait blocks until there may be something to hand out on routes; see [core.Waiter]. Its own connection stays open for
// the next call, and is closed when ctx ends. A call beside another one is an error, and so are all after it.
func (w *Waiter) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	if !w.enter(routes) {
		return core.WakePoll, errTwice
	}
	defer w.ended()
	if w.readsOn() {
		return core.WakePoll, nil
	}
	began := time.Now()
	for pause := time.Duration(0); ; {
		if w.isTwice() {
			w.listener.close(context.WithoutCancel(ctx))
			return core.WakePoll, errTwice
		}
		if ctx.Err() != nil {
			w.listener.close(context.WithoutCancel(ctx))
			return core.WakeStop, nil
		}
		if pause > safetyPoll && w.listener.works() && w.left(routes, began.Add(limit)) <= 0 {
			return w.timedOut(routes), nil // the next Wait begins with a look
		}
		w.listener.keep(ctx)
		// Under a steady load each Wait may end with its first look. The notification to itself is there by
		// then.
		if w.listener.conn != nil && !w.listener.works() && w.listener.takeArrived(ctx, routes) {
			w.stirred()
			return core.WakeNotify, nil
		}
		if d := min(w.coveredFor(routes), w.left(routes, began.Add(limit))); d > 0 {
			if w.sleepUntil(ctx, routes, d) {
				w.stirred()
				return core.WakeNotify, nil
			}
			pause = 0
			continue
		}
		notified := false
		changed, err := w.stayAwake(ctx, routes, limit)
		pause = 0
		if err == nil && !changed {
			if w.left(routes, began.Add(limit)) > 0 {
				pause = w.nextPause(routes)
			}
			changed, err = w.lookAround(ctx, routes, pause)
			if w.lapsed { // a Stage may have begun, or begin, that does not notify
				pause = min(pause, safetyPoll)
			}
			if err == nil && w.listener.conn != nil {
				notified = w.listener.takeArrived(ctx, routes)
			}
		}
		switch {
		case ctx.Err() != nil:
			continue
		case err != nil:
			return core.WakePoll, dberr.Failure("wait", err)
		case notified:
			w.stirred()
			return core.WakeNotify, nil
		case changed:
			w.stirred()
			return core.WakePoll, nil
		}
		left := w.left(routes, began.Add(limit))
		if left <= 0 {
			return w.timedOut(routes), nil
		}
		if w.sleepUntil(ctx, routes, min(pause, left)) {
			w.stirred()
			return core.WakeNotify, nil
		}
	}
}

// DueIn notes that a record of a route comes due after in. Then a Wait for the route ends, once.
func (w *Waiter) DueIn(route string, in time.Duration) {
	if in <= 0 || in > mostWait {
		return // it is read now, or asked about again before
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Now().Add(in)
	if old, known := w.dueAt[route]; known && !at.Before(old) {
		return
	}
	if w.dueAt[route] = at; w.stir != nil {
		w.stir() // to sleep for less
	}
}

// left returns how long a Wait for routes still lasts, if it is to end at end.
func (w *Waiter) left(routes []string, end time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range routes {
		if at, known := w.dueAt[r]; known && at.Before(end) {
			end = at
		}
	}
	return time.Until(end)
}

// timedOut forgets what has come due: the caller looks now.
func (w *Waiter) timedOut(routes []string) core.WakeCause {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for _, r := range routes {
		if at, known := w.dueAt[r]; known && !at.After(now) {
			delete(w.dueAt, r)
		}
	}
	return core.WakeLimit
}

// enter reports whether no other Wait is under way. If one is, both end, and so do all later ones: what a relay has
// read says nothing about the partitions of another one.
func (w *Waiter) enter(routes []string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits {
		w.twice, w.hint = true, true
		if w.stir != nil {
			w.stir()
		}
		return false
	}
	w.waits, w.routes = true, routes
	return true
}

func (w *Waiter) ended() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.routes { // the caller reads before it relies on notifications again
		w.uncover(r)
	}
	w.waits, w.routes = false, nil
}

func (w *Waiter) isTwice() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.twice
}

// SleepDeeply has each Wait sleep for d as soon as it may rely on notifications; for tests.
func (w *Waiter) SleepDeeply(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm, w.deep, w.pause = 0, d, d
}

// stirred notes that something has happened: the pauses stay short for a while.
func (w *Waiter) stirred() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calmFrom = time.Now()
}

// far reports whether the database is so far away that looks are no way to wait.
func (w *Waiter) far() bool { return w.trip > nap }

// readsOn reports whether to read again rather than to look. It does so once after each read that had records.
func (w *Waiter) readsOn() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh := w.fresh
	w.fresh = false
	return fresh && w.far() && w.gap < 2*w.trip
}

// nextPause returns how long to sleep now, and doubles it for the next time.
func (w *Waiter) nextPause(routes []string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := safetyPoll
	if w.isCalm(routes) {
		most = w.deep
	}
	p := min(w.pause, most)
	w.pause = min(2*p, most)
	return p
}

// isCalm reports whether the relay may rely on notifications, and nothing has happened for long. mu is held.
func (w *Waiter) isCalm(routes []string) bool {
	return w.listener.works() && time.Since(w.calmFrom) >= w.calm &&
		!slices.ContainsFunc(routes, func(r string) bool { return w.seen[r].before != 0 })
}

// lookAround tells the producers that this relay sleeps for pause, unless that is 0, and then whether anything
// happened since the latest read. In this order: a commit before the look is seen by it, and a Stage after the
// announcement notifies.
func (w *Waiter) lookAround(ctx context.Context, routes []string, pause time.Duration) (bool, error) {
	if w.listener.conn == nil || pause == 0 {
		return w.ask(ctx, routes, w.look)
	}
	w.listener.takeArrived(ctx, routes) // it came before this look
	w.listener.overdue = time.Now().After(w.listener.selfBy)
	least := max(pause, safetyPoll)*3/2 + asleepMargin
	return w.ask(ctx, routes, w.sleep, least.Milliseconds(), max(least, tellFor*safetyPoll).Milliseconds())
}

// stayAwake looks again and again as long as there was much to do not long ago, for at most limit, and announces
// nothing. It does so after any work if no other process wakes the relay.
func (w *Waiter) stayAwake(ctx context.Context, routes []string, limit time.Duration) (changed bool, err error) {
	w.mu.Lock()
	until := w.worked.Add(w.awake)
	if (w.gap >= busyGap || w.far()) && (w.listener.works() || time.Since(w.helped) < w.awake) {
		until = time.Time{}
	}
	w.mu.Unlock()
	if end := time.Now().Add(limit); end.Before(until) {
		until = end
	}
	for err == nil && !changed && time.Now().Before(until) {
		if w.sleepUntil(ctx, nil, nap) {
			return true, nil
		}
		changed, err = w.ask(ctx, routes, w.look)
	}
	return changed, err
}

// ask runs one of the looking statements, on the listening connection if there is one, and returns the result of
// changed.
func (w *Waiter) ask(ctx context.Context, routes []string, sql string, args ...any) (bool, error) {
	var left, last, lastNotice, xmin int64
	var said bool
	if w.listener.conn != nil {
		began := time.Now()
		answer, cancel := context.WithTimeout(ctx, lookLimit)
		defer cancel()
		err := w.listener.conn.QueryRow(answer, sql, args...).Scan(&left, &last, &lastNotice, &xmin, &said)
		if err == nil {
			w.took(time.Since(began))
			if w.lapsed = !said; w.lapsed {
				w.stirred()
			}
			if sql == w.sleep {
				w.saidFor(began, time.Duration(left)*time.Millisecond)
			}
			return w.changed(routes, last, lastNotice, xmin), nil
		}
		if dberr.Class(err) != waybill.ClassOutage && answer.Err() == nil || ctx.Err() != nil {
			return false, err
		}
		w.listener.lost(ctx, err)
	}
	w.stirred()
	err := w.conns.Use(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, w.look).Scan(&left, &last, &lastNotice, &xmin, &said)
	})
	if err != nil {
		return false, err
	}
	return w.changed(routes, last, lastNotice, xmin), nil
}

// took notes how long a look was under way. A busy machine makes some of them long, a far database all.
func (w *Waiter) took(d time.Duration) {
	if w.trip == 0 || d < w.trip {
		w.trip = d
		return
	}
	w.trip += (d - w.trip) / 64
}

// changed reports whether anything may have come into routes since they were read.
func (w *Waiter) changed(routes []string, last, lastNotice, xmin int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hint {
		w.hint = false
		return true
	}
	for _, r := range routes {
		s, ok := w.seen[r]
		if !ok || s.last != last || s.lastNotice != lastNotice || s.before != 0 && xmin >= s.before {
			return true
		}
	}
	return false
}

// Saw takes in what another statement saw: the last numbers, and below which mark all transactions have ended. If that
// is new to the Wait under way, it ends.
func (w *Waiter) Saw(last, lastNotice, xmin int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.routes {
		s, ok := w.seen[r]
		if ok && last <= s.last && lastNotice <= s.lastNotice && (s.before == 0 || xmin < s.before) {
			continue
		}
		if w.hint = true; w.stir != nil {
			w.stir()
		}
		return
	}
}

// sleepUntil sleeps for d, or until the connection is lost, or until a notification for one of routes, if there are
// any, or Wake, and reports whether it was one of these.
func (w *Waiter) sleepUntil(ctx context.Context, routes []string, d time.Duration) bool {
	sleep, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	w.mu.Lock()
	if w.hint {
		w.hint = false
		w.mu.Unlock()
		return true
	}
	w.stir = cancel
	w.mu.Unlock()
	notified := false
	for !notified && sleep.Err() == nil {
		if w.listener.conn == nil || len(routes) == 0 {
			<-sleep.Done()
			break
		}
		n, err := w.listener.conn.WaitForNotification(sleep)
		switch {
		case err != nil && sleep.Err() == nil:
			w.listener.lost(ctx, err)
			cancel() // to look at once
		case err == nil:
			notified = w.listener.take(n.Payload, routes)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stir = nil
	notified = notified || w.hint
	w.hint = false
	return notified
}

// Close closes the connection that Wait opened, if any. It must not be called while Wait runs.
func (w *Waiter) Close(ctx context.Context) { w.listener.close(ctx) }
