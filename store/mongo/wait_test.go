package mongo

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// script is a change stream that a test writes.
type script struct {
	events chan error // nil is a change
	closed *atomic.Int32
	err    error
}

func (s *script) Next(ctx context.Context) bool {
	select {
	case s.err = <-s.events:
		return s.err == nil
	case <-ctx.Done():
		s.err = ctx.Err()
		return false
	}
}

func (s *script) Err() error                  { return s.err }
func (s *script) Close(context.Context) error { s.closed.Add(1); return nil }

// scripted returns a store whose change streams the test writes, and counts them. It polls once an hour.
func scripted(t *testing.T) (s *Store, events chan error, opened, closed *atomic.Int32) {
	t.Helper()
	s = open(t, Options{})
	s.opts.PollInterval = time.Hour // longer than is allowed
	events, opened, closed = make(chan error, 1), &atomic.Int32{}, &atomic.Int32{}
	s.watch.open = func(context.Context, []string) (stream, error) {
		opened.Add(1)
		return &script{events: events, closed: closed}, nil
	}
	return s, events, opened, closed
}

type woken struct {
	cause core.WakeCause
	err   error
}

// wait begins a wait of an hour.
func wait(ctx context.Context, s *Store) <-chan woken {
	done := make(chan woken, 1)
	go func() {
		cause, err := s.Wait(ctx, []string{benchRoute}, time.Hour)
		done <- woken{cause, err}
	}()
	return done
}

func (w *woken) expect(t *testing.T, when string, done <-chan woken, want core.WakeCause) {
	t.Helper()
	patience.Until(t, when, func() bool { return len(done) > 0 })
	*w = <-done
	if w.cause != want || w.err != nil && want != core.WakeStop {
		t.Errorf("%s: woken by %q, want %q: %v", when, w.cause, want, w.err)
	}
}

// A change wakes a sleeping relay at once, and so do Wake and the end of the context; each stream is closed. DB-15
// DB-10.
func TestWaitForChanges(t *testing.T) {
	t.Parallel()
	s, events, opened, closed := scripted(t)
	var w woken
	done := wait(t.Context(), s)
	patience.Until(t, "the stream is open", func() bool { return opened.Load() == 1 })
	select {
	case w = <-done:
		t.Fatalf("woken for nothing: %+v", w)
	default:
	}
	stage := func(i int) {
		in(t, s, func(ctx context.Context, tx Tx) error {
			_, err := s.Stage(ctx, tx, message(i))
			return err
		})
	}
	events <- nil // of something that concerns nobody
	patience.Until(t, "the stream is read: the first look is over", func() bool { return len(events) == 0 })
	stage(1)
	events <- nil
	w.expect(t, "a change", done, core.WakeNotify)
	settled := func() {
		if _, err := s.outbox.DeleteMany(t.Context(), bson.M{}); err != nil {
			t.Fatal(err)
		}
	}
	settled()
	done = wait(t.Context(), s)
	patience.Until(t, "the stream is open", func() bool { return opened.Load() == 2 })
	stage(2)
	s.Wake()
	w.expect(t, "a hint", done, core.WakeNotify)
	settled()
	ctx, cancel := context.WithCancel(t.Context())
	done = wait(ctx, s)
	patience.Until(t, "the stream is open", func() bool { return opened.Load() == 3 })
	cancel()
	w.expect(t, "the context ended", done, core.WakeStop)
	if closed.Load() != 3 {
		t.Errorf("%d of 3 streams were closed", closed.Load())
	}
}

// The look after the stream is open sees the records that were staged before it, and no stream is opened for records
// that are there already. DB-10.
func TestWaitMissesNothing(t *testing.T) {
	t.Parallel()
	s, _, opened, _ := scripted(t)
	stage := func(i int) {
		in(t, s, func(ctx context.Context, tx Tx) error {
			_, err := s.Stage(ctx, tx, message(i))
			return err
		})
	}
	before := s.watch.open
	s.watch.open = func(ctx context.Context, routes []string) (stream, error) {
		stage(1) // between the first look and the stream
		return before(ctx, routes)
	}
	var w woken
	w.expect(t, "staged while the stream is opened", wait(t.Context(), s), core.WakeNotify)
	stage(2)
	w.expect(t, "staged before", wait(t.Context(), s), core.WakeNotify)
	if opened.Load() != 1 {
		t.Errorf("%d streams were opened, want 1", opened.Load())
	}
}

// A stream that breaks, or cannot be opened, leaves polling, and is not tried again at once. DB-15 DB-10.
func TestWaitWithoutChangeStreams(t *testing.T) {
	t.Parallel()
	errNo := errors.New("no change streams here")
	for _, broken := range []bool{true, false} {
		s, events, opened, _ := scripted(t)
		s.opts.PollInterval = time.Millisecond
		if !broken {
			s.watch.open = func(context.Context, []string) (stream, error) {
				opened.Add(1)
				return nil, errNo
			}
		}
		for i := range 2 {
			done := wait(t.Context(), s)
			if i == 0 {
				patience.Until(t, "it was opened", func() bool { return opened.Load() == 1 })
				if broken {
					events <- errNo
				}
				// A message that the first look finds ends the wait before the error is seen.
				patience.Until(t, "it knows that there are none", func() bool {
					s.watch.mu.Lock()
					defer s.watch.mu.Unlock()
					return !s.watch.noUntil.IsZero()
				})
			}
			in(t, s, func(ctx context.Context, tx Tx) error {
				_, err := s.Stage(ctx, tx, message(i))
				return err
			})
			var w woken
			w.expect(t, "a message, found by polling", done, core.WakeNotify)
		}
		if opened.Load() != 1 {
			t.Errorf("it was opened %d times, want once", opened.Load())
		}
	}
}

// A relay wakes when the next message is due, not at the next poll, and a limit ends a wait. DB-10.
func TestWaitForTime(t *testing.T) {
	t.Parallel()
	s, _, _, _ := scripted(t)
	in(t, s, func(ctx context.Context, tx Tx) error {
		m := waybill.RawMessage("t.x", "", nil, waybill.Routes(benchRoute), waybill.Delay(300*time.Millisecond))
		_, err := s.Stage(ctx, tx, m)
		return err
	})
	var w woken
	w.expect(t, "a timer", wait(t.Context(), s), core.WakeLimit)

	s, events, opened, _ := scripted(t)
	done := wait(t.Context(), s)
	patience.Until(t, "the stream is open", func() bool { return opened.Load() == 1 })
	in(t, s, func(ctx context.Context, tx Tx) error {
		m := waybill.RawMessage("t.x", "", nil, waybill.Routes(benchRoute), waybill.Delay(500*time.Millisecond))
		_, err := s.Stage(ctx, tx, m)
		return err
	})
	events <- nil
	w.expect(t, "a timer that was staged during the wait", done, core.WakeLimit)
	if cause, err := s.Wait(t.Context(), []string{"other"}, time.Millisecond); cause != core.WakeLimit || err != nil {
		t.Errorf("a limit: %q %v", cause, err)
	}
}

// On a replica set a commit wakes a relay through the server's change stream; the emulator has none, and says so.
// DB-15.
func TestChangeStreamOfTheServer(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	s := openIn(t, connect(t, m.URI).Database(m.Database), Options{PollInterval: time.Minute})
	st, err := s.changeStream(t.Context(), []string{benchRoute})
	if m.Emulated {
		if err == nil {
			t.Error("the emulator has change streams: test them")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Close(t.Context()); err != nil {
		t.Error(err)
	}
	done := wait(t.Context(), s)
	in(t, s, func(ctx context.Context, tx Tx) error {
		_, err := s.Stage(ctx, tx, message(1))
		return err
	})
	var w woken
	w.expect(t, "a commit", done, core.WakeNotify)
}
