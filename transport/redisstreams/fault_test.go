package redisstreams_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// TR-04: the server is killed (SIGKILL) and restarted again and again while messages are published, retried, parked and
// settled: a confirmed message comes, and a settled one does not.
func TestServerIsKilled(t *testing.T) {
	tier.Nightly(t, "kills a server five times: 5 s")
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	opts := prepared(redisstreams.Options{Confirm: redisstreams.ConfirmAlways, HoldFor: 10 * time.Second, Timeout: 3 * time.Second})
	bus := dial(t, server.URL(), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	var mu sync.Mutex
	confirmed, handled, settled, unsure := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	// A message can be handled before the publisher has heard that it is confirmed.
	lost := func() (ids []string) {
		mu.Lock()
		defer mu.Unlock()
		for id := range confirmed {
			if !handled[id] {
				ids = append(ids, id)
			}
		}
		return ids
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	room := make(chan struct{}, 25) // publishes that are not handled yet
	more := func() {
		select {
		case room <- struct{}{}:
		default: // what failed may have been stored, and made room twice
		}
	}
	for range cap(room) {
		more()
	}
	wg.Go(func() { // publishes; what fails is not published again
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-ctx.Done():
				return
			case <-room:
			}
			batch := envelopes(20+i%2*20, "a") // by the script and by transactions
			for j := range batch {
				batch[j].ID = fmt.Sprintf("%d/%d", i, j)
			}
			res := bus.Publish(ctx, batch)
			mu.Lock()
			for j, err := range res {
				if err == nil {
					confirmed[batch[j].ID] = true
				} else if waybill.ClassOf(err) != waybill.ClassOutage {
					t.Error(err)
				}
			}
			mu.Unlock()
			if res.FirstErr() != nil {
				more() // what failed is not waited for
			}
		}
	})
	done := make(chan struct{})
	wg.Go(func() { // consumes; every second message is retried once
		for {
			ds, err := r.Receive(ctx, 50)
			if err != nil && waybill.ClassOf(err) != waybill.ClassOutage {
				t.Error(err)
				return
			}
			acks := make([]core.Ack, len(ds))
			mu.Lock()
			for i, d := range ds {
				if settled[d.Envelope.ID] {
					t.Errorf("%s came after it was settled", d.Envelope.ID)
				}
				if acks[i] = core.AckDone(d); i%2 == 0 && d.Attempt == 1 {
					acks[i] = core.AckRetry(d, 10*time.Millisecond, nil)
				}
			}
			mu.Unlock()
			res := r.Settle(ctx, acks)
			for ctx.Err() == nil && res.FirstErr() != nil && !errors.Is(res.FirstErr(), waybill.ErrLeaseLost) {
				select {
				case <-time.After(5 * time.Millisecond): // the server starts
				case <-ctx.Done():
				}
				mu.Lock()
				for _, d := range ds {
					unsure[d.Envelope.ID] = true
				}
				mu.Unlock()
				res = r.Settle(ctx, acks)
			}
			mu.Lock()
			for i, err := range res {
				if err != nil || acks[i].Verdict != core.VerdictDone {
					continue
				}
				id := ds[i].Envelope.ID
				handled[id] = true
				if !unsure[id] {
					settled[id] = true
				}
				if strings.HasSuffix(id, "/0") {
					more()
				}
			}
			mu.Unlock()
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for range 5 {
		before := func() int { mu.Lock(); defer mu.Unlock(); return len(settled) }()
		patience.Until(t, "messages flow", func() bool { mu.Lock(); defer mu.Unlock(); return len(settled) > before+200 })
		server.Kill()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		t.Logf("not handled: %v", lost())
		left, ctx := queueKeys{t, raw(t, server.URL()), opts.Bus}, context.WithoutCancel(t.Context())
		for _, kind := range []string{"queue", "delayed", "parked"} {
			t.Log(kind, left.client.XLen(ctx, left.key(kind, "q")))
		}
		t.Log("held", left.client.XPending(ctx, left.key("queue", "q"), "waybill"))
	})
	patience.Until(t, "all that was confirmed was handled", func() bool { return len(lost()) == 0 })
	close(done)
	publish(t, bus, envelope("last", "a"))
	wg.Wait()
}

// CO-21, TR-04: an answer that is lost on the way costs nothing: the taken messages come at once, not after HoldFor,
// and do not count as delivered; a repeated settle succeeds if the first one happened.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	proxy := testenv.NewProxy(t, server.Addr())
	opts := prepared(redisstreams.Options{HoldFor: time.Hour, Timeout: patience.For(time.Second)})
	bus := dial(t, proxy.URL(server.URL()), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	direct := dial(t, server.URL(), opts)
	keys := queueKeys{t, raw(t, server.URL()), opts.Bus}
	publish(t, direct, envelope("first", "a")) // the server has the scripts from now on
	settle(t, r, core.AckDone(receive(t, r, 1)[0]))
	publish(t, direct, envelopes(3, "a")...)

	proxy.Blackhole(testenv.Down)
	if ds, err := r.Receive(t.Context(), 3); waybill.ClassOf(err) != waybill.ClassOutage || len(ds) > 0 {
		t.Fatalf("%d deliveries, %v", len(ds), err)
	}
	patience.Until(t, "the server has given the messages out", func() bool { return keys.pending("q") == 3 })
	proxy.Cut()
	proxy.Heal()
	ds := receive(t, r, 3)
	for _, d := range ds {
		if d.Redeliveries != 0 || d.Attempt != 1 {
			t.Errorf("%s: attempt %d, %d redeliveries", d.Envelope.ID, d.Attempt, d.Redeliveries)
		}
	}

	acks := []core.Ack{core.AckDone(ds[0]), core.AckRetry(ds[1], time.Millisecond, nil), core.AckReject(ds[2], waybill.ReasonRejected, nil)}
	proxy.Blackhole(testenv.Down)
	for _, err := range r.Settle(t.Context(), acks) {
		if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrLeaseLost) {
			t.Fatal(err)
		}
	}
	if checker, _ := core.As[core.Checker](r); checker.Check(t.Context()) == nil {
		t.Error("the receiver does not know that its connection is lost")
	}
	patience.Until(t, "the server has settled", func() bool { return keys.pending("q") == 0 })
	proxy.Cut()
	proxy.Heal()
	patience.Until(t, "the settle is known", func() bool { return r.Settle(t.Context(), acks).FirstErr() == nil })
	if d := receive(t, r, 1)[0]; d.Envelope.ID != "m00001" || d.Attempt != 2 {
		t.Errorf("%s, attempt %d", d.Envelope.ID, d.Attempt)
	}
	if n := keys.len("parked", "q"); n != 1 {
		t.Errorf("%d messages are parked", n)
	}

	for _, n := range []int{1, many} {
		proxy.Blackhole(testenv.Down)
		if err := bus.Publish(t.Context(), envelopes(n, "a"))[n-1]; waybill.ClassOf(err) != waybill.ClassOutage {
			t.Error(err)
		}
		proxy.Cut()
		proxy.Heal()
		patience.Until(t, "the server answers again", func() bool { return bus.Publish(t.Context(), envelopes(n, "a")).FirstErr() == nil })
	}
}

// TR-04: a failover that has lost bindings and a queue is over once the receiver has connected again.
func TestLostBindings(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	proxy := testenv.NewProxy(t, server.Addr())
	opts := prepared(redisstreams.Options{})
	r := subscribe(t, dial(t, proxy.URL(server.URL()), opts), core.Subscription{Queue: "q", Bindings: []string{"a"}})
	bus := dial(t, server.URL(), opts)
	proxy.Refuse()
	if err := server.Do(t.Context(), "DEL", "{"+opts.Bus+"}:bindings", "{"+opts.Bus+"}:version"); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	if _, err := r.Receive(t.Context(), 1); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Fatal(err)
	}
	if err := bus.Publish(t.Context(), envelopes(1, "a"))[0]; !errors.Is(err, waybill.ErrUnroutable) {
		t.Fatal(err)
	}
	if err := proxy.Accept(); err != nil {
		t.Fatal(err)
	}
	// After an outage Receive says at once that it is over, though there is no message.
	patience.Until(t, "the server answers again", func() bool { _, err := r.Receive(t.Context(), 1); return err == nil })
	publish(t, bus, envelope("1", "a"))
	settle(t, r, core.AckDone(receive(t, r, 1)[0]))
}

// TR-04: a server that stands still hangs no call, and all goes on when it answers again.
func TestServerIsPaused(t *testing.T) {
	tier.Nightly(t, "waits for five timeouts: 5 s")
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	opts := prepared(redisstreams.Options{Timeout: patience.For(time.Second), PublishTimeout: patience.For(2 * time.Second)})
	bus := dial(t, server.URL(), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, envelope("1", "a"))
	d := receive(t, r, 1)[0]
	server.Pause()
	for name, err := range map[string]error{
		"publish": bus.Publish(t.Context(), envelopes(1, "a"))[0],
		"many":    bus.Publish(t.Context(), envelopes(many, "a"))[0],
		"settle":  r.Settle(t.Context(), []core.Ack{core.AckDone(d)})[0],
		"check":   bus.Check(t.Context()),
	} {
		if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.Receive(t.Context(), 1); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := bus.Publish(ctx, envelopes(1, "a"))[0]; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	server.Resume()
	patience.Until(t, "the settle is known", func() bool { return r.Settle(t.Context(), []core.Ack{core.AckDone(d)}).FirstErr() == nil })
	publish(t, bus, envelope("2", "a"))
	patience.Until(t, "the message comes", func() bool {
		ds, err := r.Receive(t.Context(), 1)
		return err == nil && len(ds) == 1 && ds[0].Envelope.ID == "2" || len(ds) == 1 && r.Settle(t.Context(), []core.Ack{core.AckDone(ds[0])}).FirstErr() != nil
	})
}

// TR-04: an operator deletes everything: publishers see that nothing is bound, and an open receiver makes its queue
// again.
func TestEverythingIsDeleted(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	bus := dial(t, server.URL(), redisstreams.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, envelopes(2, "a")...)
	ds := receive(t, r, 2)
	if err := server.Do(t.Context(), "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	if err := bus.Publish(t.Context(), envelopes(1, "a"))[0]; !errors.Is(err, waybill.ErrUnroutable) {
		t.Error(err)
	}
	if err := r.Settle(t.Context(), []core.Ack{core.AckDone(ds[0])})[0]; !errors.Is(err, waybill.ErrLeaseLost) {
		t.Error(err)
	}
	came := make(chan []*waybill.Delivery, 1)
	go func() {
		ds, _ := r.Receive(t.Context(), 1)
		came <- ds
	}()
	patience.Until(t, "the queue is bound again", func() bool {
		return bus.Publish(t.Context(), []waybill.Envelope{envelope("2", "a")}).FirstErr() == nil
	})
	if ds := <-came; ids(ds) != "2" {
		t.Error(ids(ds))
	}
}
