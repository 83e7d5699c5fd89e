package listen

import (
	"context"
	"log/slog"
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
	// safetyPoll is how often at least a waiting relay looks for itself.
	safetyPoll = 500 * time.Millisecond
	// firstPoll is the first pause after there was work; pauses double from there to safetyPoll.
	firstPoll = 5 * time.Millisecond
	// maxWait bounds a wait, since partitions that others gave up meanwhile wake no member.
	maxWait = 4 * time.Second
	// asleepMargin is how much longer than until the next poll staging goes on to notify at least, and half of the
	// pause more. To say so takes a transaction id. So one relay says it for tellFor pauses, for itself and for all
	// others that sleep.
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
// and expires by itself. It writes only if no relay has said so for at least $1 ms. It also tells whether anything was
// staged or decided, and which transactions have ended.
const (
	sleepSQL = `
SELECT CASE WHEN w.last_value >= t.now + $1::bigint THEN w.last_value ELSE setval({wake_text}, t.now + $2::bigint) END, ` + drawnSQL + `
FROM {wake} w CROSS JOIN (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) t`
	lookSQL  = `SELECT 0::bigint, ` + drawnSQL
	drawnSQL = `{last}, {last_notice}, pg_snapshot_xmin(pg_current_snapshot())::text::bigint`
)

// Options says where and how to wait.
type Options struct {
	Conns conns.Source
	Names schema.Names
	// Off makes it poll only, and attend nothing.
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
	presence    presence

	mu         sync.Mutex
	seen       map[string]seen // by route, as of the latest read
	lastNotice int64           // as of the latest read
	worked     time.Time       // when a read last had records
	gap        time.Duration   // between records of late
	fresh      bool            // the latest read had records
	waits      bool            // Wait is under way
	// when a read last had records although Wait had not returned: another process wakes the relay
	helped time.Time
	pause  time.Duration
	awake  time.Duration      // awakeFor
	hint   bool               // somebody called Wake
	stir   context.CancelFunc // ends the present sleep
}

// New returns a Waiter. It connects at the first Wait or Acquire.
func New(o Options) *Waiter {
	return &Waiter{
		conns: o.Conns, sleep: o.Names.SQL(sleepSQL), look: o.Names.SQL(lookSQL),
		listener: newListener(o), presence: presence{conns: o.Conns, off: o.Off, logger: o.Logger},
		seen: map[string]seen{}, pause: firstPoll, awake: awakeFor,
	}
}

// seen is what a read of a route knew: the last numbers that were drawn, and from which mark on there are only
// transactions that it has not missed; 0 if it missed none.
type seen struct{ last, lastNotice, before int64 }

// Read notes what a read saw of the routes that it read up to the last number, and that it had records.
func (w *Waiter) Read(request *core.ReadRequest, result *core.ReadResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// The number of notices was looked up after the snapshot: it may not show the newest ones.
	s := seen{last: result.Last, lastNotice: w.lastNotice}
	w.lastNotice = result.LastNotice
	if len(result.Running) > 0 || result.Upper > result.Next {
		s.before = max(result.Next, result.Upper)
	}
	worked := 0
	for i := range request.Ranges {
		rg := &request.Ranges[i]
		worked += len(result.Ranges[i].Records)
		switch {
		case result.Ranges[i].More:
			delete(w.seen, rg.Route)
		case rg.To >= result.Last:
			w.seen[rg.Route] = s
		}
	}
	if w.fresh = worked > 0; w.fresh {
		now := time.Now()
		w.gap += (min(now.Sub(w.worked), awakeFor)/time.Duration(worked) - w.gap) / 4
		w.pause, w.worked = firstPoll, now
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
// the next call, and is closed when ctx ends.
func (w *Waiter) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	w.setWaits(true)
	defer w.setWaits(false)
	if w.readsOn() {
		return core.WakePoll, nil
	}
	began := time.Now()
	cause := core.WakeTimer
	if limit > maxWait {
		limit, cause = maxWait, core.WakePoll
	}
	for {
		if ctx.Err() != nil {
			w.listener.close(context.WithoutCancel(ctx))
			return core.WakeStop, nil
		}
		w.listener.keep(ctx)
		notified := false
		changed, err := w.stayAwake(ctx, routes, limit)
		pause := time.Duration(0)
		if err == nil && !changed {
			if time.Since(began) < limit {
				pause = w.nextPause()
			}
			changed, err = w.lookAround(ctx, routes, pause)
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
			return core.WakeNotify, nil
		case changed:
			return core.WakePoll, nil
		}
		left := limit - time.Since(began)
		if left <= 0 {
			return cause, nil
		}
		if w.sleepUntil(ctx, routes, min(pause, left)) {
			return core.WakeNotify, nil
		}
	}
}

func (w *Waiter) setWaits(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits = on
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
func (w *Waiter) nextPause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pause
	w.pause = min(2*w.pause, safetyPoll)
	return p
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
	least := pause + pause/2 + asleepMargin
	return w.ask(ctx, routes, w.sleep, least.Milliseconds(), max(least, tellFor*pause).Milliseconds())
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
	var ignored, last, lastNotice, xmin int64
	if w.listener.conn != nil {
		began := time.Now()
		err := w.listener.conn.QueryRow(ctx, sql, args...).Scan(&ignored, &last, &lastNotice, &xmin)
		if err == nil {
			w.took(time.Since(began))
			return w.changed(routes, last, lastNotice, xmin), nil
		}
		if dberr.Class(err) != waybill.ClassOutage || ctx.Err() != nil {
			return false, err
		}
		w.listener.lost(ctx, err)
	}
	err := w.conns.Use(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, w.look).Scan(&ignored, &last, &lastNotice, &xmin)
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

// sleepUntil sleeps for d, or until a notification for one of routes, if there are any, or Wake, and reports whether
// it was one of these.
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
