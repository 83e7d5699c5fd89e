package table

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A store has one waiter at a time. So one wait is under way for all receivers of the transport that are asleep. While
// other receivers are busy it is short, so that these soon join the next one.

const (
	// glance is how long a wait for some queues lasts while others are busy: they join the next one.
	glance = 50 * time.Millisecond
	// maxHasty is how many wake-ups that led to nothing may follow at once; then there is a pause between them.
	maxHasty   = 8
	hastyPause = 50 * time.Millisecond
	// sharedPoll bounds the sleep of receivers that share a queue: a store that wakes them knows only what one of
	// them has read.
	sharedPoll = 500 * time.Millisecond
	// failedPoll bounds the sleep while the store's wait fails.
	failedPoll = 10 * time.Second
)

// listen waits for news on behalf of all receivers that are asleep, unless a wait is under way. The end of a wait
// begins the next one. mu is held.
func (t *Transport) listen() {
	if t.waiter == nil || t.listening != nil || time.Now().Before(t.waitAt) {
		return
	}
	var routes []string
	var asleep []*receiver
	limit := time.Duration(0)
	for _, r := range t.receivers {
		if r.asleep() {
			asleep = append(asleep, r)
			limit = max(limit, r.opts.PollMax)
			if !slices.Contains(routes, r.queue) {
				routes = append(routes, r.queue)
			}
		}
	}
	if len(asleep) == 0 {
		return
	}
	if len(asleep) < len(t.receivers) {
		limit = glance
	}
	ctx, cancel := context.WithCancel(t.base)
	ended := make(chan struct{})
	t.listening, t.hangUp = ended, cancel
	go func() {
		began := time.Now()
		cause, err := t.waiter.Wait(ctx, routes, limit)
		stopped := ctx.Err() != nil
		cancel()
		t.mu.Lock()
		defer t.mu.Unlock()
		close(ended)
		t.listening = nil
		if stopped {
			return
		}
		news := cause != core.WakeStop && (cause != core.WakeLimit || time.Since(began) < limit)
		t.heard(asleep, news, err)
		t.listen()
	}()
}

// heard wakes those who were asleep, if there was news. mu is held.
func (t *Transport) heard(asleep []*receiver, news bool, err error) {
	now := time.Now()
	switch {
	case err != nil:
		t.waitFails++
		d, _, _ := (&waybill.Backoff{Base: t.opts.base().PollMin, Cap: time.Minute, Attempts: -1}).Next(t.waitFails, err)
		t.waitAt = now.Add(d)
		t.log.Event(t.base, slog.LevelWarn, "table.polling", "the store cannot wake receivers; polling meanwhile",
			slog.Duration("retry_in", d.Round(time.Millisecond)), slog.String("error", core.ErrorText(err)))
	case !news:
		t.waitFails = 0
		return
	default:
		t.waitFails = 0
	}
	for _, r := range asleep {
		if r.wakeups.hasty++; r.wakeups.hasty > maxHasty && t.waitAt.Before(now.Add(hastyPause)) {
			t.waitAt = now.Add(hastyPause)
		}
		r.wake(now)
	}
}

// stir has the other receivers of a queue look again after d: something may be theirs. mu is held.
func (t *Transport) stir(from *receiver, d time.Duration) {
	for _, r := range t.receivers {
		if r == from || r.queue != from.queue || r.closed {
			continue
		}
		if at := time.Now().Add(d); r.wakeups.stirAt.IsZero() || at.Before(r.wakeups.stirAt) {
			r.wakeups.stirAt = at
			r.pump()
		}
	}
}

// shared reports whether a queue has several receivers here. mu is held.
func (t *Transport) shared(queue string) bool {
	n := 0
	for _, r := range t.receivers {
		if r.queue == queue && !r.closed {
			n++
		}
	}
	return n > 1
}

// hang ends the wait if no receiver is left, and returns a channel that closes when it has ended. mu is held.
func (t *Transport) hang() <-chan struct{} {
	if t.listening == nil || len(t.receivers) > 0 {
		return nil
	}
	t.hangUp()
	return t.listening
}
