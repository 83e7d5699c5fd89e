package relay_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// savingDelay is what the documentation of PacingSaving states.
const savingDelay = 25 * time.Millisecond

// callCounts counts the calls of a store.
type callCounts struct {
	mu sync.Mutex
	by map[string]int
}

func (c *callCounts) over(s core.OutboxStore) core.OutboxStore {
	c.by = map[string]int{}
	return &sharedtest.Store{OutboxStore: s, Before: func(_ context.Context, call string, _ any) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.by[call]++
		return nil
	}}
}

func (c *callCounts) of(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by[call]
}

// arrivals notes when messages arrive.
type arrivals struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (a *arrivals) note(e *waybill.Envelope, _ int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at[e.ID] = time.Now()
	return nil
}

func (a *arrivals) of(id string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at[id]
}

// flow stages a message every 5 ms for d, with a key, and returns when.
func flow(t *testing.T, s *memory.Store, d time.Duration) map[string]time.Time {
	t.Helper()
	at := map[string]time.Time{}
	for i := range int(d / (5 * time.Millisecond)) {
		id := fmt.Sprintf("m%05d", i)
		stage(t, s, msg(id, strconv.Itoa(i%7)))
		at[id] = time.Now()
		patience.Pass(t, 5*time.Millisecond)
	}
	return at
}

// TestSavingGathers: at 200 messages a second a relay that saves reads every 25 ms and settles every 100 ms, no message
// comes later than stated, and the keys stay in order. A store that wakes no relay is served in the same way.
func TestSavingGathers(t *testing.T) {
	t.Parallel()
	for name, plainly := range map[string]bool{"with wake-ups": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, b, n, got := newStore(t), newBus(), &callCounts{}, &arrivals{at: map[string]time.Time{}}
				b.answer = got.note
				counted := n.over(s)
				if plainly {
					counted = plain{counted}
				}
				stop := begin(t, newRelay(t, counted, b, relay.Options{Pacing: relay.PacingSaving}))
				flow(t, s, time.Second)
				reads, settles, dues := n.of("read"), n.of("settle"), n.of("due")
				sent := flow(t, s, time.Minute)
				reads, settles, dues = n.of("read")-reads, n.of("settle")-settles, n.of("due")-dues
				patience.Pass(t, time.Second)
				for id, at := range sent {
					if d := got.of(id).Sub(at); d > savingDelay {
						t.Fatalf("%s took %s", id, d)
					}
				}
				if err := b.firstsInOrder(); err != nil {
					t.Error(err)
				}
				if reads > 60*1000/24 || settles > 60*10 || dues > 60+1 {
					t.Errorf("%d reads, %d settles and %d looks for timers in a minute", reads, settles, dues)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				if len(s.Records()) != 0 {
					t.Errorf("%d records are left", len(s.Records()))
				}
			})
		})
	}
}

// TestSavingAlone: a message that comes alone is read at once, and so is the next one after a pause. Within the pause
// of one read the others of a burst come together.
func TestSavingAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b, got := newStore(t), newBus(), &arrivals{at: map[string]time.Time{}}
		b.answer = got.note
		stop := begin(t, newRelay(t, s, b, relay.Options{Pacing: relay.PacingSaving}))
		patience.Pass(t, time.Second)
		for i := range 10 {
			id := "alone" + strconv.Itoa(i)
			stage(t, s, msg(id, "k"))
			at := time.Now()
			patience.Pass(t, 200*time.Millisecond)
			if d := got.of(id).Sub(at); d > 0 {
				t.Errorf("%s took %s", id, d)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestSavingDrainsAtOnce: a read that left something is followed by the next one without a pause, and published
// messages give their places back: a backlog takes as many reads, and no longer, than in a prompt relay.
func TestSavingDrainsAtOnce(t *testing.T) {
	t.Parallel()
	const n = 9_950
	for _, o := range []relay.Options{{}, {BatchSize: 100, Window: 1}} {
		took := map[relay.Pacing]time.Duration{}
		for _, p := range []relay.Pacing{relay.PacingPrompt, relay.PacingSaving} {
			synctest.Test(t, func(t *testing.T) {
				s, b := newStore(t), newBus()
				b.latency = time.Millisecond
				if o.Window == 1 {
					b.before = func(_ context.Context, batch []waybill.Envelope) {
						// others must not wait for its places
						if batch[0].ID < "m05000" && batch[0].ID[4] == '0' {
							patience.Pass(t, 60*time.Millisecond)
						}
					}
				}
				stage(t, s, msgs(n, noKey)...)
				o.Pacing = p
				patience.BudgetOf(t).Calls(5000, "a backlog is drained in batches of 100")
				start := time.Now()
				stop := begin(t, newRelay(t, s, b, o))
				within(t, 10*time.Second, "all are out", func() bool { return b.count() == n })
				took[p] = time.Since(start)
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		}
		if took[relay.PacingSaving] > took[relay.PacingPrompt]+savingDelay {
			t.Errorf("batches of %d: a relay that saves took %s, a prompt one %s", o.BatchSize, took[relay.PacingSaving], took[relay.PacingPrompt])
		}
	}
}

// TestSavingFindsTimers: in a steady flow timers and retries come as they are due, or 50 ms later. No wake-up tells of
// them.
func TestSavingFindsTimers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const late = 2 * savingDelay
		s, b, got := newStore(t), newBus(), &arrivals{at: map[string]time.Time{}}
		b.answer = func(e *waybill.Envelope, nth int) error {
			if e.ID == "retried" && nth == 1 {
				return errNo
			}
			return got.note(e, nth)
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{Pacing: relay.PacingSaving, Routes: []relay.Route{{Backoff: &waybill.Backoff{Base: 100 * time.Millisecond, Jitter: waybill.JitterNone}}}}))
		flow(t, s, 1100*time.Millisecond)
		stage(t, s, msg("retried", ""))
		flow(t, s, 330*time.Millisecond)
		due := map[string]time.Time{}
		for i := range 5 {
			id := "timer" + strconv.Itoa(i)
			stage(t, s, msg(id, "", waybill.Delay(150*time.Millisecond)))
			due[id] = time.Now().Add(150 * time.Millisecond)
			flow(t, s, 330*time.Millisecond)
		}
		tx := s.Begin() // shows its timer late
		if _, err := s.Stage(t.Context(), tx, msg("late", "", waybill.Delay(300*time.Millisecond))); err != nil {
			t.Fatal(err)
		}
		due["late"] = time.Now().Add(300 * time.Millisecond)
		flow(t, s, 200*time.Millisecond)
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		flow(t, s, time.Second)
		for id, at := range due {
			if d := got.of(id).Sub(at); d < 0 || d > late {
				t.Errorf("%s came %s after it was due", id, d)
			}
		}
		if got.of("retried").IsZero() {
			t.Error("the retry did not come")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestSavingReadsAllRoutes: while one route has messages, the others are read with it, so that their messages come as
// soon, although no wake-up tells of them.
func TestSavingReadsAllRoutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b, n, got := newStore(t), newBus(), &callCounts{}, &arrivals{at: map[string]time.Time{}}
		b.answer = got.note
		o := relay.Options{Pacing: relay.PacingSaving, Routes: []relay.Route{{}, {Name: "rare"}}}
		stop := begin(t, newRelay(t, n.over(s), b, o))
		flow(t, s, time.Second)
		before := n.of("read")
		for i := range 5 {
			id := "rare" + strconv.Itoa(i)
			stage(t, s, msg(id, "", waybill.Routes("rare")))
			at := time.Now()
			flow(t, s, 213*time.Millisecond)
			if d := got.of(id).Sub(at); d < 0 || d > savingDelay {
				t.Errorf("%s took %s", id, d)
			}
		}
		if reads := n.of("read") - before; reads > 5*9 {
			t.Errorf("%d reads in a second", reads)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// waited counts the Waits of a store.
type waited struct {
	*memory.Store
	n atomic.Int64
}

func (w *waited) Wait(ctx context.Context, routes []string, limit time.Duration) (core.WakeCause, error) {
	w.n.Add(1)
	return w.Store.Wait(ctx, routes, limit)
}

// TestSavingIsNotWoken: while messages come, a relay that saves waits for no wake-up. So a store need not wake it.
func TestSavingIsNotWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := &waited{Store: newStore(t)}, newBus()
		stop := begin(t, newRelay(t, s, b, relay.Options{Pacing: relay.PacingSaving}))
		flow(t, s.Store, time.Second)
		before := s.n.Load()
		flow(t, s.Store, 10*time.Second)
		if n := s.n.Load() - before; n > 0 {
			t.Errorf("%d waits", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestSavingKeepsCrashWindowsQuick: records that a dead relay may have had out go in windows. The next window waits for
// the outcomes of the one before, which are stored at once.
func TestSavingKeepsCrashWindowsQuick(t *testing.T) {
	t.Parallel()
	took := map[relay.Pacing]time.Duration{}
	for _, p := range []relay.Pacing{relay.PacingPrompt, relay.PacingSaving} {
		synctest.Test(t, func(t *testing.T) {
			s, b := newStore(t), newBus()
			stage(t, s, msgs(1000, noKey)...)
			crash(t, s)
			start := time.Now()
			stop := begin(t, newRelay(t, s, b, relay.Options{Pacing: p}))
			within(t, 5*time.Second, "all are out", func() bool { return b.count() == 1000 })
			took[p] = time.Since(start)
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if took[relay.PacingSaving] > took[relay.PacingPrompt]+savingDelay {
		t.Errorf("a relay that saves took %s, a prompt one %s", took[relay.PacingSaving], took[relay.PacingPrompt])
	}
}

// TestSavingOnce: a RunOnce does not gather.
func TestSavingOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		var took [2]time.Duration
		for p := range took {
			stage(t, s, msgs(10, noKey)...)
			start := time.Now()
			if _, err := newRelay(t, s, b, relay.Options{Pacing: relay.Pacing(p)}).RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			took[p] = time.Since(start)
		}
		if b.count() != 20 || took[relay.PacingSaving] > took[relay.PacingPrompt] {
			t.Errorf("%d of 20 messages; a prompt pass took %s, one that saves %s", b.count(), took[relay.PacingPrompt], took[relay.PacingSaving])
		}
	})
}
