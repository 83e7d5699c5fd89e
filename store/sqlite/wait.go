package sqlite

import (
	"context"
	"database/sql"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

// calm is the least time between two wake-ups without a newly staged message in between, so that the commits of a busy
// application do not make the relay look at messages that wait for their key over and over.
const calm = 100 * time.Millisecond

// watcher notices commits of other connections.
type watcher struct {
	lock chan struct{} // held while conn is used
	conn *sql.Conn

	mu     sync.Mutex
	seen   map[string]int64 // route → version before the last claim that found nothing
	staged int64            // newest sequence at the last wake-up
	woken  time.Time        // when that was
}

func (w *watcher) close() {
	w.lock <- struct{}{}
	defer func() { <-w.lock }()
	if w.conn != nil {
		_ = w.conn.Close()
		w.conn = nil
	}
}

// look returns a number that is another one after another connection has committed. It comes from a connection that
// writes nothing. Where the database is limited to one connection, it is the newest sequence.
func (s *Store) look(ctx context.Context) (int64, error) {
	w := &s.watch
	select {
	case w.lock <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-w.lock }()
	var v int64
	if s.db.Stats().MaxOpenConnections == 1 {
		err := s.db.QueryRowContext(ctx, s.text.sequence).Scan(&v) //nolint:gosec // the text holds nothing foreign but Options.Prefix, which Validate has checked
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
	err := w.conn.QueryRowContext(ctx, "PRAGMA data_version").Scan(&v)
	if err != nil && ctx.Err() == nil {
		_ = w.conn.Close()
		w.conn = nil
	}
	return v, err
}

// sawNothing notes that a claim that began at version found nothing.
func (s *Store) sawNothing(routes []string, version int64) {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	s.watch.note(routes, version)
}

// news reports whether there was a commit since the last claims of routes. A route that was never claimed begins now.
func (w *watcher) news(routes []string, version int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := false
	for _, r := range routes {
		if v, ok := w.seen[r]; ok && v != version {
			changed = true
		} else if !ok {
			w.seen[r] = version
		}
	}
	return changed
}

// ring decides whether to wake the relay, and notes what it will see.
func (w *watcher) ring(routes []string, version, staged int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if staged == w.staged && time.Since(w.woken) < calm {
		return false // look again at the next poll
	}
	w.staged, w.woken = staged, time.Now()
	w.note(routes, version)
	return true
}

// note remembers that version was looked at for routes. The caller holds mu.
func (w *watcher) note(routes []string, version int64) {
	for _, r := range routes {
		w.seen[r] = version
	}
}

// Wait blocks until another connection committed something after which a record of routes may be claimable, until the
// next timer of routes that was staged meanwhile, limit, or the end of ctx.
func (s *Store) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	st, err := s.prepared(ctx, "wait")
	if err != nil {
		return core.WakeStop, err
	}
	end := time.Now().Add(max(limit, 0))
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		rung, next, err := s.listen(ctx, st, routes)
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
			return core.WakeTimer, nil
		}
		poll.Reset(min(left, s.opts.PollInterval))
		select {
		case <-ctx.Done():
			return core.WakeStop, outage("wait", ctx.Err())
		case <-s.hint:
		case <-poll.C:
		}
	}
}

// listen looks once. Next is the time until the next timer if that may have changed, else negative.
func (s *Store) listen(ctx context.Context, st *statements, routes []string) (rung bool, next time.Duration, err error) {
	version, err := s.look(ctx)
	if err != nil || !s.watch.news(routes, version) {
		return false, -1, err
	}
	var staged int64
	if err := s.db.QueryRowContext(ctx, s.text.sequence).Scan(&staged); err != nil { //nolint:gosec // the text holds nothing foreign but Options.Prefix, which Validate has checked
		return false, -1, err
	}
	due, next, err := s.peek(ctx, st, routes, s.now())
	if err != nil {
		return false, -1, err
	}
	if due {
		return s.watch.ring(routes, version, staged), next, nil
	}
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	s.watch.note(routes, version)
	return false, next, nil
}

// Wake makes a relay that waits in this process look at once, instead of at its next poll. A producer may call it after
// a commit. It never blocks.
func (s *Store) Wake() {
	select {
	case s.hint <- struct{}{}:
	default:
	}
}
