package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

func retaining(tb testing.TB, r waybill.Retention) *memory.Store {
	tb.Helper()
	return storeWith(tb, memory.Options{Source: "/test", Retention: r})
}

// DB-09: the relay cleans its store at an interval, in small steps, and reports the number of deleted records. It never
// deletes a record that is not settled.
func TestCleaning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := &countingCleaner{Store: retaining(t, waybill.Retention{Published: time.Hour, Abandoned: 2 * time.Hour})}, newBus()
		b.answer = func(e *waybill.Envelope, _ int) error {
			if e.Topic == "bad" {
				return &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonForbidden}
			}
			return nil
		}
		reader := metric.NewManualReader()
		var buf sharedtest.Log
		stop := begin(t, newRelay(t, s, b, relay.Options{Logger: slog.New(slog.NewTextHandler(&buf, nil)), MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}))
		stage(t, s.Store, msgs(2500, noKey)...)
		stage(t, s.Store, waybill.RawMessage("bad", "text/plain", nil), msg("later", "", waybill.Delay(48*time.Hour)),
			msg("expires", "", waybill.Routes("nobody"), waybill.TTL(10*time.Minute)))
		patience.Pass(t, 59*time.Minute)
		if n := states(s.Store)[core.StatePublished]; n != 2500 {
			t.Errorf("%d kept", n)
		}
		if l := buf.Take(); strings.Count(l, "event=relay.clean ") != 1 || !strings.Contains(l, "deleted=0 expired=1") {
			t.Errorf("%s", l)
		}
		calls := s.calls()
		if calls < 59 || calls > 85 {
			t.Errorf("%d calls in an hour", calls)
		}
		patience.Pass(t, 3*time.Minute)
		if n := states(s.Store)[core.StatePublished]; n != 0 {
			t.Errorf("%d kept too long", n)
		}
		if n := s.calls() - calls; n < 5 || n > 9 {
			t.Errorf("%d calls for three batches", n)
		}
		if l := buf.Take(); strings.Count(l, "event=relay.clean ") != 1 || !strings.Contains(l, "level=INFO") || !strings.Contains(l, "deleted=2500 expired=0 published=2500") {
			t.Errorf("%s", l)
		}
		patience.Pass(t, 2*time.Hour)
		if err := stop(); err != nil {
			t.Error(err)
		}
		got := collect(t, reader, "waybill.relay.cleaned")
		if got["reason=,state=published"] != 2500 || got["reason=forbidden,state=abandoned"] != 1 {
			t.Errorf("%v", got)
		}
		if st := states(s.Store); st[core.StatePending] != 1 {
			t.Errorf("%v", st)
		}
		if s.most > 1 {
			t.Errorf("%d calls at a time", s.most)
		}
		if got := collect(t, reader, "waybill.relay.abandoned"); got["reason=expired"] != 1 {
			t.Errorf("%v", got)
		}
	})
}

// countingCleaner looks at the calls of Clean.
type countingCleaner struct {
	*memory.Store
	err   error
	delay time.Duration

	mu              sync.Mutex
	n, now, most    int
	owners, elected map[string]bool
}

func (c *countingCleaner) calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// The method who returns the number of cleaners that have tried, and of those that were elected, since the last call.
func (c *countingCleaner) who() (tried, elected int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tried, elected = len(c.owners), len(c.elected)
	clear(c.owners)
	clear(c.elected)
	return tried, elected
}

func (c *countingCleaner) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	c.mu.Lock()
	c.n++
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	if c.delay > 0 {
		select {
		case <-time.After(c.delay):
		case <-ctx.Done():
		}
	}
	done, err := c.Store.Clean(ctx, owner, lease)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
	if c.owners == nil {
		c.owners, c.elected = map[string]bool{}, map[string]bool{}
	}
	if c.owners[owner] = true; done.Leader {
		c.elected[owner] = true
	}
	return done, errors.Join(err, c.err)
}

// DB-09: of several relays, of one name too, one cleans; when it is gone another takes over.
func TestOneCleans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := &countingCleaner{Store: retaining(t, waybill.Retention{Published: time.Minute})}, newBus()
		var stops []func() error
		for range 3 {
			stops = append(stops, begin(t, newRelay(t, s, b, relay.Options{Name: "same"})))
		}
		patience.Pass(t, time.Hour)
		if tried, elected := s.who(); tried != 3 || elected != 1 {
			t.Errorf("%d relays tried, %d were elected", tried, elected)
		}
		for i := range 2 {
			if err := stops[i](); err != nil {
				t.Error(err)
			}
		}
		patience.Pass(t, 10*time.Minute)
		if _, elected := s.who(); elected != 1 {
			t.Errorf("%d clean after two stopped", elected)
		}
		if err := stops[2](); err != nil {
			t.Error(err)
		}
	})
}

// DB-09: cleaning that fails or hangs breaks nothing, does not delay a stop, and can be turned off.
func TestCleaningFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := &countingCleaner{Store: newStore(t), err: down()}, newBus()
		r := newRelay(t, s, b, relay.Options{})
		stop := begin(t, r)
		patience.Pass(t, 10*time.Minute)
		stage(t, s.Store, msg("a", ""))
		within(t, 2*time.Millisecond, "published", func() bool { return b.count() == 1 })
		h := r.Health(t.Context())
		expect(t, h, "cleanup", waybill.HealthDegraded, "down")
		if !h.Ready || s.calls() > 16 {
			t.Errorf("%d calls, %s", s.calls(), h)
		}
		s.mu.Lock()
		s.delay = time.Hour
		s.mu.Unlock()
		patience.Pass(t, 61*time.Second)
		stage(t, s.Store, msg("b", ""))
		within(t, 2*time.Millisecond, "published while cleaning hangs", func() bool { return b.count() == 2 })
		s.mu.Lock()
		if s.most != 1 {
			t.Errorf("%d calls at a time", s.most)
		}
		s.mu.Unlock()
		start, calls := time.Now(), s.calls()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > time.Millisecond {
			t.Errorf("stopped after %s", d)
		}
		patience.Pass(t, time.Hour)
		if s.calls() != calls {
			t.Error("cleaned after the stop")
		}
		off := &countingCleaner{Store: newStore(t)}
		stop = begin(t, newRelay(t, off, b, relay.Options{CleanInterval: -1}))
		patience.Pass(t, time.Hour)
		if err := stop(); err != nil || off.calls() > 0 {
			t.Errorf("%v, %d calls while off", err, off.calls())
		}
	})
}
