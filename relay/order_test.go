package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// OR-02 RL-11: a hot key that holds half of the backlog delays its own messages only.
func TestHotKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.latency = 5 * time.Millisecond
		var cold atomic.Int32
		b.answer = func(e *waybill.Envelope, _ int) error {
			if e.Key != "hot" {
				cold.Add(1)
			}
			return nil
		}
		stage(t, s, msgs(2000, func(i int) string {
			if i%2 == 0 {
				return "hot"
			}
			return fmt.Sprint("k", i)
		})...)
		start := time.Now()
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		within(t, time.Second, "the other keys", func() bool { return cold.Load() == 1000 })
		if d := time.Since(start); d > 200*time.Millisecond {
			t.Errorf("1000 messages of other keys took %s beside a hot key", d)
		}
		within(t, 10*time.Second, "the hot key", func() bool { return b.count() == 2000 })
		if d := time.Since(start); d > 6*time.Second {
			t.Errorf("the hot key took %s; 1000 messages need 5 s one by one", d)
		}
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		if b.overlaps > 0 {
			t.Errorf("two of one key were in flight %d times", b.overlaps)
		}
	})
}

// TestBacklogOfManyKeysIsReadOnce: what could not be sent sooner waits in the store. Read ahead, most of it would be
// passed, and read a second time by key.
func TestBacklogOfManyKeysIsReadOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(500, "10,000 messages, at most 100 a call")
		const n, keys = 10_000, 100
		s, b := &reads{Store: newStore(t)}, newBus()
		b.latency = 5 * time.Millisecond
		stage(t, s.Store, msgs(n, func(i int) string { return fmt.Sprint("k", i%keys) })...)
		stop := begin(t, newRelay(t, s, b, relay.Options{BatchSize: 50}))
		within(t, time.Minute, "everything", func() bool { return b.count() == n })
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		if got := s.records.Load(); got < n || got > n+n/20 {
			t.Errorf("%d records were read of %d that there are", got, n)
		}
	})
}

// reads counts the records that are read.
type reads struct {
	*memory.Store
	records atomic.Int64
}

func (s *reads) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	p, err := s.Store.Read(ctx, self, request)
	for i := range p.Ranges {
		s.records.Add(int64(len(p.Ranges[i].Records)))
	}
	for i := range p.Keys {
		s.records.Add(int64(len(p.Keys[i].Records)))
	}
	return p, err
}

// OR-02: nor does a key whose backlog is longer than the relay's window.
func TestHotKeyDoesNotFillTheRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(21*time.Second, "4,000 of a key, 5 ms each")
		s, b := newStore(t), newBus()
		b.latency = 5 * time.Millisecond
		var cold atomic.Int32
		b.answer = func(e *waybill.Envelope, _ int) error {
			if e.Key != "hot" {
				cold.Add(1)
			}
			return nil
		}
		stage(t, s, msgs(6000, func(i int) string {
			if i < 4000 {
				return "hot"
			}
			return fmt.Sprint("k", i)
		})...)
		stop := begin(t, newRelay(t, s, b, relay.Options{BatchSize: 200}))
		within(t, time.Second, "the other keys, behind 4000 of the hot one", func() bool { return cold.Load() == 2000 })
		within(t, 30*time.Second, "the hot key", func() bool { return b.count() == 6000 })
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
	})
}

// OR-02: a failure cuts the rest of its key, in the same settle.
func TestFailureCutsItsKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.answer = func(e *waybill.Envelope, nth int) error {
			if e.ID == "m00003" && nth < 3 {
				return errNo
			}
			return nil
		}
		s := &faulty{OutboxStore: mem}
		stage(t, mem, msgs(20, func(i int) string { return strconv.Itoa(i % 2) })...)
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		within(t, time.Minute, "published", func() bool { return len(mem.Records()) == 0 })
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		for _, call := range s.settls {
			for i := range call {
				if call[i].Event() == core.EventReleased {
					t.Error("a release was stored")
				}
			}
		}
	})
}

// OR-03
func TestBestEffortDoesNotStallTheKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(e *waybill.Envelope, nth int) error {
			if e.ID == "m00000" && nth == 1 {
				return errNo
			}
			return nil
		}
		stage(t, s, msgs(4, func(int) string { return "k" })...)
		stop := begin(t, newRelay(t, s, b, relay.Options{Routes: []relay.Route{{Order: waybill.OrderBestEffort}}}))
		within(t, time.Minute, "published", func() bool { return b.count() == 4 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]string{"m00001", "m00002", "m00003", "m00000"}, b.ids()); d != "" {
			t.Error(d)
		}
		if b.calls != 2 {
			t.Errorf("%d calls; a batch in best effort is one", b.calls)
		}
	})
}

// A publisher that pipelines gets a whole key in one call; a message that it fails behind another failure costs no
// attempt.
func TestPipelinedPrefix(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.traits.KeyOrder = core.KeyOrderPipelinedPrefix
		b.answer = func(e *waybill.Envelope, nth int) error {
			switch {
			case e.ID == "m00010" && nth == 1:
				return errNo
			case e.ID == "m00020":
				return &waybill.Error{Class: waybill.ClassPermanent}
			}
			return nil
		}
		stage(t, s, msgs(30, func(int) string { return "k" })...)
		var attempts []int
		o := relay.Options{Hooks: relay.Hooks{OnPublished: func(e relay.Event) { attempts = append(attempts, e.Attempt) }}}
		stop := begin(t, newRelay(t, s, b, o))
		within(t, time.Minute, "published", func() bool { return b.count() == 29 })
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		if b.calls > 4 {
			t.Errorf("%d calls", b.calls)
		}
		for i, n := range attempts {
			if (i == 10) != (n == 2) {
				t.Errorf("message %d was published in attempt %d", i, n)
			}
		}
	})
}

// A message that must go again behind a failed one of its key costs no attempt and no pause, also where the order does
// not matter.
func TestBehindCostsNothing(t *testing.T) {
	t.Parallel()
	for _, order := range []waybill.Order{waybill.OrderPerKey, waybill.OrderBestEffort} {
		synctest.Test(t, func(t *testing.T) {
			s, b := newStore(t), newBus()
			b.traits.KeyOrder = core.KeyOrderPipelinedPrefix
			b.answer = func(e *waybill.Envelope, nth int) error {
				if e.ID == "m00001" && nth == 1 {
					return &waybill.Error{Class: waybill.ClassOutage, Err: waybill.ErrPredecessorFailed}
				}
				return nil
			}
			stage(t, s, msgs(2, func(int) string { return "k" })...)
			attempt := 0
			hooks := relay.Hooks{OnPublished: func(e relay.Event) { attempt = max(attempt, e.Attempt) }}
			stop := begin(t, newRelay(t, s, b, relay.Options{Hooks: hooks, Routes: []relay.Route{{Order: order}}}))
			within(t, 100*time.Millisecond, "published", func() bool { return b.count() == 2 })
			if err := stop(); err != nil || attempt != 1 {
				t.Errorf("order %v: attempt %d: %v", order, attempt, err)
			}
		})
	}
}

// RL-10: one relay serves many routes, and a slow one does not starve another.
func TestRoutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(40*time.Second, "two publishes of 20 s")
		s, fast, slow := newStore(t), newBus(), newBus()
		slow.latency = 20 * time.Second
		for _, m := range msgs(3000, noKey) {
			m.Routes = []string{"slow"}
			stage(t, s, m)
		}
		stop := begin(t, newRelay(t, s, fast, relay.Options{Routes: []relay.Route{{Name: "slow", Publisher: slow}, {Name: "fast"}}}))
		patience.Pass(t, time.Second)
		for i := range 3000 {
			m := msg(fmt.Sprint("f", i), "")
			m.Routes = []string{"fast"}
			stage(t, s, m)
		}
		within(t, 100*time.Millisecond, "the fast route", func() bool { return fast.count() == 3000 })
		within(t, 61*time.Second, "the slow route", func() bool { return slow.count() == 3000 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// P2 P5 OR-02 RL-10: several relays over a store and a broker that fail before and after every step lose nothing and
// keep the order of first arrivals of every key.
func TestFaultsLoseNothingAndKeepOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		relays := rapid.IntRange(1, 3).Draw(rt, "relays")
		keys := rapid.IntRange(1, 8).Draw(rt, "keys")
		n := rapid.IntRange(1, 120).Draw(rt, "messages")
		batch := rapid.SampledFrom([]int{1, 3, 20}).Draw(rt, "batch")
		pipelined := rapid.Bool().Draw(rt, "pipelined")
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = faults(t, seed, relays, keys, n, batch, pipelined) })
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

func faults(t *testing.T, seed uint64, relays, keys, n, batch int, pipelined bool) error {
	t.Helper()
	mem, b := newStore(t), newBus()
	if pipelined {
		b.traits.KeyOrder = core.KeyOrderPipelinedPrefix
	}
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	calm := time.Now().Add(20 * time.Minute) // after that nothing fails
	roll := func(percent int) bool {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Before(calm) && rng.IntN(100) < percent
	}
	pause := func() {
		mu.Lock()
		d := time.Duration(rng.IntN(30)) * time.Millisecond
		if time.Now().Before(calm) && rng.IntN(100) == 0 {
			d = time.Duration(rng.IntN(3000)) * time.Millisecond
		}
		mu.Unlock()
		patience.Pass(t, d)
	}
	b.answer = func(*waybill.Envelope, int) error {
		switch {
		case roll(5):
			return errNo
		case roll(2):
			return down()
		case roll(2):
			return &waybill.Error{Class: waybill.ClassOutage, TopicOnly: true, Err: errors.New("full")}
		}
		return nil
	}
	one := func(i int) func() error {
		s := &faulty{OutboxStore: mem}
		s.read = func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
			pause()
			if roll(3) {
				return core.ReadResult{}, down()
			}
			return next()
		}
		s.heartbeat = func(_ core.HeartbeatRequest, next func() (core.Membership, error)) (core.Membership, error) {
			pause()
			if roll(3) {
				return core.Membership{}, down()
			}
			c, err := next()
			if roll(3) { // done, but the answer is lost
				return core.Membership{}, down()
			}
			return c, err
		}
		s.settle = func(o []core.Outcome, next func() core.Results) core.Results {
			pause()
			if roll(5) {
				return core.AllFailed(len(o), down())
			}
			res := next()
			if roll(3) { // stored, but the answer is lost
				return core.AllFailed(len(o), down())
			}
			return res
		}
		p := &lossy{bus: b, roll: roll, pause: pause}
		o := relay.Options{
			Name: strconv.Itoa(i), BatchSize: batch, Lease: 5 * time.Second, PublishTimeout: 2 * time.Second, PollMax: time.Second, DrainTimeout: time.Second,
			Routes: []relay.Route{{Backoff: &waybill.Backoff{Base: 100 * time.Millisecond, Cap: time.Second, Attempts: -1}}},
		}
		return begin(t, newRelay(t, s, p, o))
	}
	var stops []func() error
	var ended error
	for i := range relays {
		stops = append(stops, one(i))
	}
	staged := 0
	for staged < n {
		tx := msgs(n, func(i int) string {
			if i%5 == 4 {
				return ""
			}
			return strconv.Itoa(i % keys)
		})[staged:min(n, staged+7)]
		stage(t, mem, tx...)
		staged += len(tx)
		pause()
		if roll(20) { // stop one and start another
			ended = errors.Join(ended, stops[0]())
			stops = append(stops[1:], one(len(stops)))
		}
	}
	end := calm.Add(30 * time.Minute)
	for len(mem.Records()) > 0 && time.Now().Before(end) {
		patience.Pass(t, time.Second)
	}
	for _, stop := range stops {
		ended = errors.Join(ended, stop())
	}
	if ended != nil {
		return ended
	}
	if r := mem.Records(); len(r) > 0 {
		return fmt.Errorf("%d of %d left, first %s %s %s", len(r), n, r[0].Envelope.ID, r[0].State, r[0].Reason)
	}
	arrived := map[string]bool{}
	for _, id := range b.ids() {
		arrived[id] = true
	}
	if len(arrived) != n {
		return fmt.Errorf("%d of %d arrived", len(arrived), n)
	}
	return b.firstsInOrder()
}

// lossy loses calls and answers.
type lossy struct {
	*bus
	roll  func(percent int) bool
	pause func()
}

func (p *lossy) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	p.pause()
	if p.roll(3) {
		return core.AllFailed(len(batch), down())
	}
	if p.roll(1) {
		panic("lost")
	}
	res := p.bus.Publish(ctx, batch)
	p.pause()
	if p.roll(5) { // arrived, but the confirms are lost
		return core.AllFailed(len(batch), down())
	}
	return res
}
