package table

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

// A process that is killed must not keep its messages until its lease ends. So a transport shows one token for all of
// its receivers, if the store has any: something in the database that ends with the process; see core.Presence.

// acquireFirst and acquireLast bound the pause before another token is taken. After one that lasted for acquireLast the
// pause begins at acquireFirst again.
const (
	acquireFirst = 100 * time.Millisecond
	acquireLast  = 10 * time.Second
)

var errAbsent = errors.New("connection lost")

// presence is the token that all receivers show.
type presence struct {
	token int64              // 0 = none
	end   context.CancelFunc // gives it back
}

// keepPresence keeps a token shown until ctx ends.
func (t *Transport) keepPresence(ctx context.Context, store core.Presence) {
	for rest := time.Duration(0); sleep.For(ctx, rest) == nil; {
		began := time.Now()
		if !t.showPresence(ctx, store) {
			return
		}
		if time.Since(began) >= acquireLast {
			rest = 0
		}
		rest = min(max(2*rest, acquireFirst), acquireLast)
	}
}

// showPresence shows a token until it is lost, or until another process has missed it. It reports whether there can be
// another one.
func (t *Transport) showPresence(ctx context.Context, store core.Presence) bool {
	shown, end := context.WithCancel(ctx)
	defer end()
	select { // it may use a connection of the pool, as any call
	case t.calls <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	token, lost, err := store.Acquire(shown)
	<-t.calls
	switch {
	case err != nil:
		if ctx.Err() == nil {
			t.log.Event(ctx, slog.LevelWarn, "table.presence_failed",
				"the process cannot show that it is there; if it is killed now, others wait for its lease", slog.String("error", core.ErrorText(err)))
		}
		return true
	case token == 0:
		t.log.Event(ctx, slog.LevelInfo, "table.presence_off",
			"the store cannot tell whether this process is there, as behind a pooler; if it is killed, others wait for its lease")
		return false
	}
	t.show(presence{token, end})
	select {
	case <-lost:
		if shown.Err() == nil {
			t.log.Event(ctx, slog.LevelWarn, "table.presence_lost",
				"the connection that shows that the process is there has ended; taking another", slog.String("error", errAbsent.Error()))
		}
	case <-shown.Done():
	}
	t.show(presence{})
	return true
}

// show has all receivers show p from now on.
func (t *Transport) show(p presence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.presence = p
	for _, r := range t.receivers {
		r.d.SetPresence(p.token)
		r.pump()
	}
}

// missed gives the token back if another process has missed it. mu is held.
func (r *receiver) missed() {
	if p := r.t.presence; p.token != 0 && r.d.Presence() != p.token {
		p.end()
	}
}
