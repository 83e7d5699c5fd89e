package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

const (
	// safetyPoll is how often at least a waiting relay looks for itself.
	safetyPoll = 500 * time.Millisecond
	// firstPoll is the first pause after there was work; pauses double from there to safetyPoll.
	firstPoll = 5 * time.Millisecond
	// maxWait bounds a wait, since units that others gave up meanwhile tell nobody.
	maxWait = 4 * time.Second
	// asleepMargin is how much longer than until the next poll staging goes on to notify, and half of the pause more.
	asleepMargin = 10 * time.Millisecond
	// A relay that gets a record more often than every busyGap, and had one awakeFor ago or less, looks again
	// every nap, and tells nobody that it sleeps. Under load there is more by then, so that one read takes what many
	// transactions staged and no commit has to notify: those that do wait for each other's flush to disk.
	nap      = time.Millisecond
	awakeFor = 20 * nap
	busyGap  = 4 * nap

	selfPrefix    = "\x01self" // no route begins with a control character
	selfTimeout   = 2 * time.Second
	relistenFirst = time.Second
	relistenLast  = time.Minute
	// maxDeaf is how often the notification to itself may fail to arrive. Each LISTEN through a pooler that shares
	// connections by transaction stays on one of its connections for ever.
	maxDeaf = 2
)

// sleepSQL says until when this relay sleeps, in a sequence: it is read live in every isolation level, needs no lock,
// and expires by itself. It also tells whether anything was staged or decided, and which transactions have ended.
const (
	sleepSQL = `
SELECT setval({wake_text}, greatest(w.last_value, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $1)), ` + drawnSQL + ` FROM {wake} w`
	lookSQL  = `SELECT $1::bigint, ` + drawnSQL
	drawnSQL = lastSQL + `, (SELECT CASE WHEN co.is_called THEN co.last_value ELSE 0 END FROM {told} co), pg_snapshot_xmin(pg_current_snapshot())::text::bigint`
)

// waiter lets one relay sleep. Its connection is its own, not one of the pool's.
type waiter struct {
	sleep, look, listen, notify string

	mu     sync.Mutex
	seen   map[string]seen // by route, as of the latest read
	told   int64           // as of the latest read
	worked time.Time       // when a read last had records
	gap    time.Duration   // between records of late
	waits  bool            // Wait is under way
	helped time.Time       // when a read last had records although Wait had not returned: somebody else wakes the relay
	pause  time.Duration
	hint   bool               // somebody called Wake
	stir   context.CancelFunc // ends the present sleep

	// Only Wait uses these; one call at a time.
	conn     *pgx.Conn
	self     string    // the notification that must arrive, "" once it did
	selfBy   time.Time // by then, if the connection was read since
	overdue  bool      // it was, by a query that began after selfBy
	relisten time.Time // when to try again
	backoff  time.Duration
	deaf     int // how often in a row the notification did not arrive
}

// seen is what a read of a route knew: the last numbers that were drawn, and from which mark on there are only
// transactions that it has not missed; 0 if it missed none.
type seen struct{ last, told, before int64 }

func (w *waiter) init(n names) {
	w.sleep, w.look = n.sql(sleepSQL), n.sql(lookSQL)
	w.listen, w.notify = "LISTEN "+pgx.Identifier{n.channel()}.Sanitize(), n.sql("SELECT pg_notify({channel}, $1)")
	w.seen, w.pause = map[string]seen{}, firstPoll
}

// read notes what a read saw of the routes that it read up to the last number, and that it had records.
func (w *waiter) read(look *core.Look, page *core.Page, told int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := seen{last: page.Last, told: w.told} // the number of control records was looked up after the snapshot: it may not show the newest ones
	w.told = told
	if len(page.Running) > 0 || page.Upper > page.Next {
		s.before = max(page.Next, page.Upper)
	}
	worked := 0
	for i := range look.Ranges {
		rg := &look.Ranges[i]
		worked += len(page.Ranges[i].Records)
		switch {
		case page.Ranges[i].More:
			delete(w.seen, rg.Route)
		case rg.To >= page.Last:
			w.seen[rg.Route] = s
		}
	}
	if worked > 0 {
		now := time.Now()
		w.gap += (min(now.Sub(w.worked), awakeFor)/time.Duration(worked) - w.gap) / 4
		w.pause, w.worked = firstPoll, now
		if w.waits {
			w.helped = now
		}
	}
}

// Wake ends the present or else the next Wait of this outbox at once. A program that runs the relay itself may call it
// after its commit: it is faster than a notification.
func (o *Outbox) Wake() { o.waiter.wake() }

func (w *waiter) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hint = true
	if w.stir != nil {
		w.stir()
	}
}

// Wait blocks until there may be something to hand out on routes; see [core.Waiter]. It opens a connection of its own
// to LISTEN on, with the pool's configuration, and keeps it for the next call; it closes it when ctx ends, as does
// [Outbox.Close]. While nothing happens it makes two queries a second; under load, for 20 ms after a read that had
// records, one a millisecond. If LISTEN does not work (it was lost, or there is a pooler that shares connections by
// transaction), Wait polls, and tries again from time to time; if twice in a row a notification to itself did not
// arrive, no more.
func (o *Outbox) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	if err := o.ready(ctx); err != nil {
		return core.WakePoll, err
	}
	w := &o.waiter
	w.setWaits(true)
	defer w.setWaits(false)
	began := time.Now()
	cause := core.WakeTimer
	if limit > maxWait {
		limit, cause = maxWait, core.WakePoll
	}
	for {
		if ctx.Err() != nil {
			w.close(context.WithoutCancel(ctx))
			return core.WakeStop, nil
		}
		o.keepListening(ctx)
		notified := false
		changed, err := o.stayAwake(ctx, routes, limit)
		pause := time.Duration(0)
		if err == nil && !changed {
			if time.Since(began) < limit {
				pause = w.nextPause()
			}
			changed, err = o.lookAround(ctx, routes, pause)
			if err == nil && w.conn != nil {
				notified = o.takeArrived(ctx, routes)
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
		if o.sleepUntil(ctx, routes, min(pause, left)) {
			return core.WakeNotify, nil
		}
	}
}

func (w *waiter) setWaits(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits = on
}

// nextPause returns how long to sleep now, and doubles it for the next time.
func (w *waiter) nextPause() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pause
	w.pause = min(2*w.pause, safetyPoll)
	return p
}

// lookAround tells the producers that this relay sleeps for pause, unless that is 0, and then whether anything
// happened since the latest read. In this order: what commits before the look is seen by it, what is staged after the
// telling notifies.
func (o *Outbox) lookAround(ctx context.Context, routes []string, pause time.Duration) (bool, error) {
	w := &o.waiter
	if w.conn == nil || pause == 0 {
		return o.ask(ctx, routes, w.look, 0)
	}
	o.takeArrived(ctx, routes) // it came before this look
	w.overdue = time.Now().After(w.selfBy)
	return o.ask(ctx, routes, w.sleep, (pause + pause/2 + asleepMargin).Milliseconds())
}

// stayAwake looks again and again as long as there was much to do not long ago, for at most limit, and tells nobody
// anything. It does so after any work if nobody else wakes the relay.
func (o *Outbox) stayAwake(ctx context.Context, routes []string, limit time.Duration) (changed bool, err error) {
	w := &o.waiter
	w.mu.Lock()
	until := w.worked.Add(awakeFor)
	if w.gap >= busyGap && (w.conn != nil && w.self == "" || time.Since(w.helped) < awakeFor) {
		until = time.Time{}
	}
	w.mu.Unlock()
	if end := time.Now().Add(limit); end.Before(until) {
		until = end
	}
	for err == nil && !changed && time.Now().Before(until) {
		if o.sleepUntil(ctx, nil, nap) {
			return true, nil
		}
		changed, err = o.ask(ctx, routes, w.look, 0)
	}
	return changed, err
}

// ask runs one of the looking statements, on the listening connection if there is one, and reports what changed says.
func (o *Outbox) ask(ctx context.Context, routes []string, sql string, arg int64) (bool, error) {
	w := &o.waiter
	var ignored, last, told, xmin int64
	if w.conn != nil {
		err := w.conn.QueryRow(ctx, sql, arg).Scan(&ignored, &last, &told, &xmin)
		if err == nil {
			return w.changed(routes, last, told, xmin), nil
		}
		if dberr.Class(err) != waybill.ClassOutage || ctx.Err() != nil {
			return false, err
		}
		o.lost(ctx, err)
	}
	if err := o.pool.QueryRow(ctx, w.look, 0).Scan(&ignored, &last, &told, &xmin); err != nil {
		return false, err
	}
	return w.changed(routes, last, told, xmin), nil
}

// changed reports whether anything may have come into routes since they were read.
func (w *waiter) changed(routes []string, last, told, xmin int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hint {
		w.hint = false
		return true
	}
	for _, r := range routes {
		s, ok := w.seen[r]
		if !ok || s.last != last || s.told != told || s.before != 0 && xmin >= s.before {
			return true
		}
	}
	return false
}

// sleepUntil sleeps for d, or until a notification for one of routes, if there are any, or Wake, and reports whether
// it was one of these.
func (o *Outbox) sleepUntil(ctx context.Context, routes []string, d time.Duration) bool {
	w := &o.waiter
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
		if w.conn == nil || len(routes) == 0 {
			<-sleep.Done()
			break
		}
		n, err := w.conn.WaitForNotification(sleep)
		switch {
		case err != nil && sleep.Err() == nil:
			o.lost(ctx, err)
		case err == nil:
			notified = w.take(n.Payload, routes)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stir = nil
	notified = notified || w.hint
	w.hint = false
	return notified
}

// takeArrived takes the notifications that came with the answer to a query, and reports whether one was for routes. A
// busy relay reads its connection in no other way. It gives the connection up if the notification to itself should have
// been among them: a pooler stands between, and the LISTEN went to some other session.
func (o *Outbox) takeArrived(ctx context.Context, routes []string) (notified bool) {
	w := &o.waiter
	over, cancel := context.WithCancel(ctx)
	cancel() // what has arrived is returned all the same
	for {
		n, err := w.conn.WaitForNotification(over)
		if err != nil {
			break
		}
		notified = w.take(n.Payload, routes) || notified
	}
	if w.self != "" && w.overdue {
		w.deaf++
		o.lost(ctx, errors.New("a notification to ourselves did not arrive: is there a pooler that shares connections by transaction?"))
	}
	return notified
}

// take reports whether the notification is for one of routes, and not to ourselves.
func (w *waiter) take(payload string, routes []string) bool {
	if payload != "" && payload == w.self {
		w.self, w.backoff, w.deaf = "", 0, 0
		return false
	}
	return payload == "" || slices.Contains(routes, payload)
}

// keepListening opens the connection that listens, if there is none and it is time.
func (o *Outbox) keepListening(ctx context.Context) {
	w := &o.waiter
	if o.opts.DisableNotify || w.conn != nil || w.deaf >= maxDeaf || time.Now().Before(w.relisten) {
		return
	}
	if err := o.startListening(ctx); err != nil && ctx.Err() == nil {
		o.lost(ctx, err)
	}
}

func (o *Outbox) startListening(ctx context.Context) error {
	w := &o.waiter
	ctx, cancel := context.WithTimeout(ctx, selfTimeout)
	defer cancel()
	conn, err := o.connect(ctx)
	if err != nil {
		return err
	}
	w.conn = conn
	if _, err := conn.Exec(ctx, w.listen); err != nil {
		return err
	}
	w.self = fmt.Sprintf("%s%016x", selfPrefix, rand.Uint64())
	w.selfBy = time.Now().Add(selfTimeout)
	w.overdue = false
	_, err = o.pool.Exec(ctx, w.notify, w.self) // over another connection: on the same one a pooler would hide the fault
	return err
}

// connect opens a connection that is not one of the pool's, with its configuration.
func (o *Outbox) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg := o.pool.Config()
	c := cfg.ConnConfig.Copy()
	c.OnNotification = nil
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, c); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, c)
}

// lost gives the listening connection up and says so. Polling goes on.
func (o *Outbox) lost(ctx context.Context, err error) {
	w := &o.waiter
	w.close(ctx)
	w.backoff = min(max(2*w.backoff, relistenFirst), relistenLast)
	w.relisten = time.Now().Add(w.backoff)
	level, retry := slog.LevelWarn, w.backoff.String()
	if w.deaf >= maxDeaf {
		retry = "never: connect to the server itself, or set DisableNotify"
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "57P01" {
		level = slog.LevelInfo // an operator's restart
	}
	o.opts.logger().Log(ctx, level, "waybill/postgres: LISTEN lost, polling meanwhile",
		"event", "listen_lost", "retry_in", retry, "error", core.ErrorText(err))
}

func (w *waiter) close(ctx context.Context) {
	if w.conn == nil {
		return
	}
	closeConn(ctx, w.conn)
	w.conn, w.self = nil, ""
}

// Close closes the connection that Wait opened, if any. It must not be called while Wait runs; the outbox stays usable.
// The pool stays open: it is the caller's.
func (o *Outbox) Close(ctx context.Context) error {
	o.waiter.close(ctx)
	return nil
}
