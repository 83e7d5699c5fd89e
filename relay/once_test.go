package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
)

// RL-15: one pass publishes everything that is due, however few the keys are.
func TestRunOnceOfFewKeys(t *testing.T) {
	t.Parallel()
	for keys, n := range map[int]int{1: 3000, 3: 5000, 10: 5000, 1000: 5000} {
		synctest.Test(t, func(t *testing.T) {
			s, b := newStore(t), newBus()
			stage(t, s, msgs(n, func(i int) string { return strconv.Itoa(i % keys) })...)
			c, err := newRelay(t, s, b, relay.Options{}).RunOnce(t.Context())
			if err != nil || c.Published != n || len(s.Records()) > 0 {
				t.Errorf("%d keys: %+v, %v", keys, c, err)
			}
			if err := b.firstsInOrder(); err != nil {
				t.Error(err)
			}
		})
	}
}

// RL-15: records of another relay are an error that counts the due ones and names their owner; without a due record
// there is no error.
func TestRunOnceBesideAnother(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(time.Minute, "a publish of a minute")
			s, slow, b := newStore(t), newBus(), newBus()
			slow.latency = time.Minute
			stop := begin(t, newRelay(t, s, slow, relay.Options{Name: "the other", PublishTimeout: 2 * time.Minute, DrainTimeout: 2 * time.Minute}))
			patience.Pass(t, time.Second)
			var store core.OutboxStore = s
			if hidden {
				store = plain{s}
			}
			begun := time.Now()
			if c, err := newRelay(t, store, b, relay.Options{}).RunOnce(t.Context()); (err != nil) != hidden || c.HandedOut > 0 {
				t.Errorf("nothing is due: %+v, %v", c, err)
			}
			if d := time.Since(begun); d > 8*time.Second {
				t.Errorf("took %s", d)
			}
			stage(t, s, msgs(20, noKey)...)
			patience.Pass(t, 5*time.Second) // they are out at the other
			_, err := newRelay(t, store, b, relay.Options{}).RunOnce(t.Context())
			if err == nil || !strings.Contains(err.Error(), "the other owns") || !hidden && !strings.Contains(err.Error(), "20 ") {
				t.Errorf("%v", err)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// RL-15: a relay that died is waited for until its lease is over, and everything is published then.
func TestRunOnceAfterACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(11*time.Second, "the lease of who died")
		s, b := newStore(t), newBus()
		stage(t, s, msgs(20, noKey)...)
		dead := core.Member{Session: 9, Name: "dead", Heartbeats: 5, Lease: 10 * time.Second, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 64}}}
		r, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: dead, Join: true})
		var moves []core.Transfer
		for _, u := range r.Partitions {
			moves = append(moves, core.Transfer{Partition: u.Partition, To: 9})
		}
		if err == nil {
			_, err = s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: dead, Transfers: moves})
		}
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		c, err := newRelay(t, s, b, relay.Options{}).RunOnce(t.Context())
		if err != nil || c.Published != 20 {
			t.Errorf("%+v, %v", c, err)
		}
		if d := time.Since(begun); d < 10*time.Second || d > 12*time.Second {
			t.Errorf("took %s", d)
		}
	})
}

// RL-15: an outage ends a pass with an error that counts the records that are left and gives the cause.
func TestRunOnceInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(e *waybill.Envelope, _ int) error {
			if e.Key == "bad" {
				return &waybill.Error{Class: waybill.ClassOutage, TopicOnly: true, Err: errors.New("the queue is full")}
			}
			return nil
		}
		full := msg("f", "bad")
		full.Topic = "t.full"
		stage(t, s, append(msgs(20, noKey), full)...)
		patience.Pass(t, time.Second)
		c, err := newRelay(t, s, b, relay.Options{}).RunOnce(t.Context())
		if err == nil || c.Published != 20 || waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), "1 pending on route default") ||
			!strings.Contains(err.Error(), "the queue is full") {
			t.Errorf("%+v, %v", c, err)
		}
		b.answer = func(*waybill.Envelope, int) error { return down() }
		stage(t, s, msg("x", ""), msg("y", "k"))
		if _, err = newRelay(t, s, b, relay.Options{}).RunOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "down") {
			t.Errorf("%v", err)
		}
	})
}

// P3 RL-10: relays divide the partitions between them; when one leaves or dies, another goes on with its records, in
// order.
func TestTwoRelays(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(15*time.Second, "the lease of who died")
			patience.BudgetOf(t).Calls(250, "each relay reads and settles 100 messages a second, one by one")
			s, b := newStore(t), newBus()
			b.latency = 5 * time.Millisecond
			cut := &faulty{OutboxStore: s}
			var off atomic.Bool
			cut.heartbeat = func(_ core.HeartbeatRequest, next func() (core.Membership, error)) (core.Membership, error) {
				if off.Load() {
					return core.Membership{}, down()
				}
				return next()
			}
			cut.read = func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
				if off.Load() {
					return core.ReadResult{}, down()
				}
				return next()
			}
			cut.settle = func(o []core.Outcome, next func() core.Results) core.Results {
				if off.Load() {
					return core.AllFailed(len(o), down())
				}
				return next()
			}
			one, two := newRelay(t, cut, b, relay.Options{Name: "one"}), newRelay(t, s, b, relay.Options{Name: "two"})
			ctx, kill := context.WithCancel(t.Context())
			first := make(chan error, 1)
			go func() { first <- one.Run(ctx) }()
			stop := begin(t, two)
			n := 0
			put := func(k int) {
				for range k {
					stage(t, s, msg(fmt.Sprintf("m%05d", n), strconv.Itoa(n%100)))
					n++
					patience.Pass(t, 10*time.Millisecond)
				}
			}
			put(1000)
			for _, r := range []*relay.Relay{one, two} {
				expect(t, r.Health(t.Context()), "route default", waybill.HealthOK, "32 of 64 partitions")
			}
			if dies { // its database is cut off
				off.Store(true)
			} else {
				kill()
			}
			put(500)
			within(t, 15*time.Second, "all", func() bool { return len(s.Records()) == 0 })
			expect(t, two.Health(t.Context()), "route default", waybill.HealthOK, "64 of 64 partitions")
			kill()
			if err := errors.Join(stop(), <-first, b.firstsInOrder()); err != nil {
				t.Error(err)
			}
			for id, tries := range b.tried {
				if tries > 1 && !dies || tries > 2 {
					t.Errorf("%s was sent %d times", id, tries)
				}
			}
		})
	}
}

// P7: of two relays the one whose broker works takes over the other's partitions.
func TestOneBrokerDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(500, "a message each millisecond wakes both relays")
		s, good, bad := newStore(t), newBus(), newBus()
		up := time.Now().Add(5 * time.Minute)
		bad.answer = func(*waybill.Envelope, int) error {
			if time.Now().Before(up) {
				return down()
			}
			return nil
		}
		stops := []func() error{begin(t, newRelay(t, s, good, relay.Options{})), begin(t, newRelay(t, s, bad, relay.Options{}))}
		patience.Pass(t, 5*time.Second)
		stage(t, s, msgs(200, func(i int) string { return strconv.Itoa(i) })...)
		within(t, 10*time.Second, "all", func() bool { return good.count() == 200 })
		patience.Pass(t, time.Until(up.Add(time.Minute)))
		list := msgs(2000, noKey)
		for i := range list {
			list[i].ID = "n" + list[i].ID
		}
		for i := range list {
			stage(t, s, list[i])
			time.Sleep(time.Millisecond)
		}
		within(t, time.Minute, "all", func() bool { return good.count()+bad.count() == 2200 })
		if bad.count() < 500 {
			t.Errorf("the relay whose broker works again got %d of 2000", bad.count())
		}
		for _, stop := range stops {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// RL-14: a hint finds a message at once, also if the store cannot wake the relay.
func TestWakeHint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		r := newRelay(t, plain{s}, b, relay.Options{})
		stop := begin(t, r)
		patience.Pass(t, time.Minute)
		for i := range 100 {
			stage(t, s, msg(strconv.Itoa(i), ""))
			r.Wake()
			within(t, 2*time.Millisecond, "found", func() bool { return b.count() == i+1 })
			patience.Pass(t, time.Duration(i)*100*time.Millisecond)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		r.Wake()
		r.Wake()
	})
}

// ST-11: a message that expires while it waits in memory is not sent.
func TestExpiresInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(41*time.Second, "two publishes of 20 s")
		s, b := newStore(t), newBus()
		b.latency = 20 * time.Second
		stage(t, s, msg("a", "k"), msg("b", "k", waybill.TTL(10*time.Second)), msg("c", "k", waybill.TTL(time.Minute)))
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		within(t, time.Minute, "the others", func() bool { return b.count() == 2 })
		if err := stop(); err != nil || b.tried["b"] > 0 {
			t.Errorf("%v, sent %v", err, b.tried)
		}
		if r := s.Records(); len(r) != 1 || r[0].Reason != waybill.ReasonExpired {
			t.Errorf("%+v", r)
		}
	})
}

// RL-15: one pass publishes everything that is due, however many keys wait.
func TestRunOnceAtTheBoundOfKeys(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "100,000 keys are the bound, and one pass over them takes 10 s")
	const n = 101_000
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(2*time.Hour+10*time.Second, "the pause until the retries are due")
		patience.BudgetOf(t).Calls(1200, "101,000 messages in batches of 500: a read, a Due and a settle each, twice")
		s, b := newStore(t), newBus()
		b.answer = func(_ *waybill.Envelope, tries int) error {
			if tries == 1 {
				return errNo
			}
			return nil
		}
		for from := 0; from < n; from += 1000 {
			list := msgs(1000, func(i int) string { return strconv.Itoa(from + i) })
			for i := range list {
				list[i].ID = strconv.Itoa(from + i)
			}
			stage(t, s, list...)
		}
		opts := relay.Options{Routes: []relay.Route{{Backoff: waybill.RetryDelays(time.Hour)}}}
		if c, err := newRelay(t, s, b, opts).RunOnce(t.Context()); err != nil || c.Published != 0 || c.Failed != n {
			t.Errorf("all are refused: %+v, %v", c, err)
		}
		time.Sleep(2 * time.Hour)
		if c, err := newRelay(t, s, b, opts).RunOnce(t.Context()); err != nil || c.Published != n || len(s.Records()) > 0 {
			t.Errorf("all are due again: %+v, %v", c, err)
		}
	})
}
