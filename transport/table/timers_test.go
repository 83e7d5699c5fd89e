package table_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/table"
)

// half of the timers are staged before the receiver waits.
const half = 50

// duePoll is how often a receiver asks for due records without a hint that there are any.
const duePoll = time.Second

// asked counts a receiver's calls to its store, whose Wait says nothing until it is told, and then answers once.
type asked struct {
	core.OutboxStore
	tell chan struct{}

	mu     sync.Mutex
	sent   time.Time // of the latest Due
	due    int       // calls of Due
	hinted int       // those of them that came sooner than a poll
	vain   int       // those of hinted that found no timer
	moved  int       // timers that came due
	told   int       // answers of Wait
}

func (s *asked) Unwrap() any { return s.OutboxStore }

func (s *asked) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	s.mu.Lock()
	now := time.Now()
	hinted := s.due > 0 && now.Sub(s.sent) < duePoll
	s.sent = now
	s.mu.Unlock()
	result, err := s.OutboxStore.Due(ctx, self, parts, limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due++
	s.moved += result.TimersReady
	if hinted {
		s.hinted++
	}
	if hinted && result.TimersReady == 0 {
		s.vain++
	}
	return result, err
}

func (s *asked) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	select {
	case <-ctx.Done():
		return core.WakeStop, nil
	case <-s.tell:
	}
	w, _ := core.As[core.Waiter](s.OutboxStore)
	cause, err := w.Wait(ctx, routes, limit)
	s.mu.Lock()
	s.told++
	s.mu.Unlock()
	return cause, err
}

// TestTimers: of 100 timers, half of them staged while the receiver waits, each is found because Due said when the next
// one comes. The poll interval is an hour, and the store wakes the receiver once, for the second half.
//
// TQ-04
func TestTimers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(400, "a timer every 20 ms, with four calls each")
		s := newStore(t)
		asked := timers(t, backend{s, s.stage})
		// a receiver that does not listen to Due has one, by the wake-up
		if least := half; asked.hinted < least {
			t.Errorf("%d calls of Due came sooner than a poll, want %d at least: the receiver does not ask when the next timer is due", asked.hinted, least)
		}
	})
}

// The same on a server. How often Due comes sooner than a poll depends on its speed, so that is not looked at:
// TestTimers sees that a receiver listens to Due, and the conformance suite that Due says when the next timer comes.
func TestTimersPostgres(t *testing.T) {
	tier.Nightly(t, "timers of a server come in real time: 7 s (TestTimers is virtual)")
	t.Parallel()
	b, _ := postgresBackend(t, 4)
	timers(t, b)
}

func timers(t *testing.T, b backend) *asked {
	t.Helper()
	s := &asked{OutboxStore: b.store, tell: make(chan struct{}, 1)}
	stage := func(from int) {
		var msgs []waybill.Message
		for i := range half {
			after := 1500*time.Millisecond + time.Duration(i)*20*time.Millisecond
			msgs = append(msgs, mail.Message(i, waybill.ID(strconv.Itoa(from+i)), waybill.Delay(after)))
		}
		if err := b.stage(t.Context(), msgs...); err != nil {
			t.Error(err)
		}
	}
	stage(0)
	var handled atomic.Int64
	first, done := make(chan struct{}), make(chan struct{})
	go func() {
		select {
		case <-first:
		case <-t.Context().Done():
			return
		}
		stage(half)
		s.tell <- struct{}{}
	}()
	tr := newTable(t, s, table.Options{PollMin: time.Hour})
	run(t, tr, done, map[string]waybill.Handler{"mails": {Name: "mail.send", Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
		switch handled.Add(1) {
		case half:
			close(first)
		case 2 * half:
			close(done)
		}
		return 0, nil
	}}})
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Logf("%d calls of Due, %d sooner than a poll, %d of these in vain; told %d times, %d handled", s.due, s.hinted, s.vain, s.told, handled.Load())
	if s.moved != 2*half {
		t.Errorf("%d timers came due, want %d", s.moved, 2*half)
	}
	if most := 2*half + 10; s.vain > most {
		t.Errorf("%d calls of Due sooner than a poll found nothing, want at most %d", s.vain, most)
	}
	if s.told != 1 {
		t.Errorf("the store woke the receiver %d times, want once", s.told)
	}
	return s
}
