package sqlite

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

var _ core.Waiter = (*Store)(nil)

// calm is the least time between two wake-ups without anything new in between. Without it the commits of a busy
// application would again and again wake relays that look only at messages that wait for their key, or that others have
// out.
const calm = 100 * time.Millisecond

// When nothing new came for quietAfter, Wait looks quietTimes less often: an idle process costs next to nothing.
const (
	quietAfter = time.Second
	quietTimes = 4
)

const (
	newsText = `SELECT coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name = 'waybill_outbox'), 0),
		coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name = 'waybill_outbox_notices'), 0)`
	// freshText tells whether a route has something new since the number ?2, or since the notice ?3.
	freshText = `SELECT EXISTS (SELECT 1
			FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND seq > ?2 AND due_at IS NULL AND settled_at IS NULL)
		OR EXISTS (SELECT 1 FROM waybill_outbox_notices INDEXED BY waybill_outbox_notices_route WHERE route = ?1 AND number > ?3)`
	// peekText tells whether a route has ready records, and when its next timer and its next retry are due.
	peekText = `SELECT EXISTS (SELECT 1
			FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND due_at IS NULL AND settled_at IS NULL),
		(SELECT min(due_at)
			FROM waybill_outbox INDEXED BY waybill_outbox_timer
			WHERE route = ?1 AND due_at IS NOT NULL AND state = {pending}),
		(SELECT due_at
			FROM waybill_outbox INDEXED BY waybill_outbox_retry
			WHERE route = ?1 AND state = {failed} AND hold = 0
			ORDER BY due_at LIMIT 1)`
)

// watcher notices commits of other connections.
type watcher struct {
	lock chan struct{} // held while conn is used
	conn *sql.Conn

	mu   sync.Mutex
	seen map[string]sight // by route
	news time.Time        // when a look last showed something new
}

// sight is the state of a route at the last look of a Wait.
type sight struct {
	version     int64 // of the database
	seq, notice int64 // the last numbers when it woke somebody
	woken       time.Time
}

func (w *watcher) close() {
	w.lock <- struct{}{}
	defer func() { <-w.lock }()
	if w.conn != nil {
		_ = w.conn.Close()
		w.conn = nil
	}
}

// version returns a number that changes when another connection has committed. It comes from a connection that writes
// nothing. If the database is limited to one connection, it is the newest sequence.
func (w *watcher) version(ctx context.Context, s *Store) (int64, error) {
	select {
	case w.lock <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-w.lock }()
	var v int64
	if s.db.Stats().MaxOpenConnections == 1 {
		err := s.db.QueryRowContext(ctx, s.sql(lastText)).Scan(&v)
		return v, err
	}
	if w.conn == nil {
		if s.closed.Load() {
			return 0, sql.ErrConnDone
		}
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return 0, err
		}
		w.conn = conn
	}
	// The statement never waits for a lock, and with a context that can end database/sql starts a goroutine for
	// each.
	err := w.conn.QueryRowContext(context.WithoutCancel(ctx), "PRAGMA data_version").Scan(&v)
	if err != nil && ctx.Err() == nil {
		_ = w.conn.Close()
		w.conn = nil
	}
	return v, err
}

// Wait blocks until there can be something new on routes, until their next known timer or retry is due, limit has
// passed, or ctx ends. It needs no member. It can return early for no reason.
func (s *Store) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	if _, err := s.prepared(ctx, "wait"); err != nil {
		return core.WakeStop, err
	}
	end := time.Now().Add(max(limit, 0))
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		rung, next, err := s.listen(ctx, routes)
		if ctx.Err() != nil {
			return core.WakeStop, outage("wait", ctx.Err())
		}
		if err != nil {
			return core.WakePoll, s.classify("wait", err)
		}
		if rung {
			return core.WakeNotify, nil
		}
		if next >= 0 {
			if t := time.Now().Add(next); t.Before(end) {
				end = t
			}
		}
		left := time.Until(end)
		if left <= 0 {
			return core.WakeLimit, nil
		}
		poll.Reset(min(left, s.watch.pause(time.Now(), s.opts.PollInterval)))
		select {
		case <-ctx.Done():
			return core.WakeStop, outage("wait", ctx.Err())
		case <-s.hint:
		case <-poll.C:
		}
	}
}

// listen looks once. next is the time until the next timer or retry if that can have changed, else negative.
func (s *Store) listen(ctx context.Context, routes []string) (rung bool, next time.Duration, err error) {
	next = -1
	version, err := s.watch.version(ctx, s)
	if err != nil {
		return false, next, err
	}
	for _, route := range routes {
		old, known := s.watch.last(route)
		if known && old.version == version {
			continue
		}
		var news sight
		var due bool
		var in time.Duration
		err := s.read(ctx, "wait", func(w *work) (err error) {
			news, due, in, err = w.news(ctx, route, old)
			return err
		})
		if err != nil {
			return false, -1, err
		}
		if in >= 0 && (next < 0 || in < next) {
			next = in
		}
		switch {
		case due && !news.woken.IsZero():
			rung = true
		case due:
			continue // it is too early: look again at the next poll
		default:
			news.woken = old.woken
		}
		news.version = version
		s.watch.note(route, news)
	}
	return rung, next, nil
}

func (w *watcher) last(route string) (sight, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, known := w.seen[route]
	return old, known
}

func (w *watcher) note(route string, news sight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A relay's own renewals are commits too.
	if old := w.seen[route]; news.seq != old.seq || news.notice != old.notice || news.woken != old.woken {
		w.news = time.Now()
	}
	w.seen[route] = news
}

// pause is how long to wait until the next look, with this interval between two.
func (w *watcher) pause(now time.Time, interval time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.news) >= quietAfter {
		return quietTimes * interval
	}
	return interval
}

// news looks at a route: whether a record is due, and the time until another one is. It sets woken if a relay is to be
// woken now: at once for new records, and now and then for the others.
func (w *work) news(ctx context.Context, route string, old sight) (news sight, due bool, next time.Duration, err error) {
	var fresh bool
	var timer, retry sql.NullInt64
	next = -1
	if _, err := w.one(ctx, []any{&news.seq, &news.notice}, newsText); err != nil {
		return news, false, next, err
	}
	if _, err := w.one(ctx, []any{&fresh}, freshText, route, old.seq, old.notice); err != nil {
		return news, false, next, err
	}
	if _, err := w.one(ctx, []any{&due, &timer, &retry}, peekText, route); err != nil {
		return news, false, next, err
	}
	for _, at := range []sql.NullInt64{timer, retry} {
		switch in := duration(at.Int64 - w.now); {
		case !at.Valid:
		case in <= 0:
			due = true
		case next < 0 || in < next:
			next = in
		}
	}
	due = due || fresh
	if fresh || due && time.Since(old.woken) >= calm {
		news.woken = time.Now()
	}
	return news, due, next, nil
}

// Wake makes every Wait in this process look at once, and not at the next poll. A producer can call it after a commit.
// It never blocks.
func (s *Store) Wake() {
	select {
	case s.hint <- struct{}{}:
	default:
	}
}
