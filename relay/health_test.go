package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
)

// expect checks one finding.
func expect(t *testing.T, h waybill.Health, name string, status waybill.HealthStatus, text string) {
	t.Helper()
	c, ok := h.Check(name)
	if !ok || c.Status != status || !strings.Contains(c.Text, text) {
		t.Errorf("%s: want %s with %q in\n%s", name, status, text, h)
	}
}

// RL-13: Health before, during and after a run.
func TestHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		s := &faulty{OutboxStore: mem}
		var mu sync.Mutex
		var readErr, pubErr error
		set := func(p *error, err error) { mu.Lock(); *p = err; mu.Unlock() }
		s.read = func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
			mu.Lock()
			defer mu.Unlock()
			if readErr != nil {
				return core.ReadResult{}, readErr
			}
			return next()
		}
		b.answer = func(e *waybill.Envelope, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(e.ID, "a") {
				return pubErr
			}
			return nil
		}
		r := newRelay(t, s, b, relay.Options{Routes: []relay.Route{{Name: "a"}, {Name: "b"}}})
		if err := r.Pause("b"); err != nil {
			t.Fatal(err)
		}
		h := r.Health(t.Context())
		if !h.Live || h.Ready {
			t.Errorf("before: %s", h)
		}
		expect(t, h, "run", waybill.HealthFailed, "not running")
		expect(t, h, "route b", waybill.HealthDegraded, "paused")

		stop := begin(t, r)
		patience.Pass(t, time.Second)
		h = r.Health(t.Context())
		if !h.Live || !h.Ready {
			t.Errorf("running: %s", h)
		}
		expect(t, h, "run", waybill.HealthOK, "0 records held")
		expect(t, h, "store", waybill.HealthOK, "latest answer ")
		expect(t, h, "route a", waybill.HealthOK, "nothing published yet")
		expect(t, h, "route b", waybill.HealthDegraded, "paused")
		expect(t, h, "backlog", waybill.HealthOK, "0 waiting")
		expect(t, h, "unserved", waybill.HealthOK, "none")
		if err := r.Resume("b"); err != nil {
			t.Error(err)
		}

		set(&pubErr, down())
		stage(t, mem, append(on("a", 1), on("b", 1)...)...)
		patience.Pass(t, 10*time.Second)
		h = r.Health(t.Context())
		if !h.Ready {
			t.Errorf("one broker down: %s", h)
		}
		expect(t, h, "route a", waybill.HealthDegraded, "down")
		expect(t, h, "route b", waybill.HealthOK, "latest publish 10s ago")
		expect(t, h, "backlog", waybill.HealthOK, "1 waiting, the oldest due one for 10s, on route a")
		patience.Pass(t, 10*time.Minute)
		expect(t, r.Health(t.Context()), "backlog", waybill.HealthDegraded, "10m10s, on route a")
		set(&pubErr, nil)
		patience.Pass(t, time.Minute)
		expect(t, r.Health(t.Context()), "route a", waybill.HealthOK, "latest publish")

		set(&readErr, fmt.Errorf("database: %w", down()))
		patience.Pass(t, time.Minute)
		h = r.Health(t.Context())
		if h.Ready || !h.Live {
			t.Errorf("store down: %s", h)
		}
		expect(t, h, "store", waybill.HealthFailed, "database")
		set(&readErr, nil)
		patience.Pass(t, time.Minute)
		if h = r.Health(t.Context()); !h.Ready {
			t.Errorf("healed: %s", h)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		h = r.Health(t.Context())
		if h.Ready || !h.Live {
			t.Errorf("after: %s", h)
		}
		expect(t, h, "run", waybill.HealthFailed, "not running")

		set(&readErr, &waybill.Error{Class: waybill.ClassPermanent, Err: errors.Join(waybill.ErrMisconfigured, errors.New("no such table"))})
		r = newRelay(t, s, b, relay.Options{})
		if err := r.Run(t.Context()); err == nil {
			t.Error("no error")
		}
		h = r.Health(t.Context())
		if h.Live || h.Ready {
			t.Errorf("ended by an error: %s", h)
		}
		expect(t, h, "run", waybill.HealthFailed, "no such table")
	})
}

// TestBacklogOfFailed: messages that wait for their next attempt are part of the backlog.
func TestBacklogOfFailed(t *testing.T) { // RL-13
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(*waybill.Envelope, int) error { return errNo }
		stage(t, s, msg("a", ""))
		r := newRelay(t, s, b, relay.Options{Routes: []relay.Route{{Backoff: &waybill.Backoff{Kind: waybill.BackoffConstant, Base: time.Minute}}}})
		stop := begin(t, r)
		within(t, time.Second, "a failure", func() bool { return states(s)[core.StateFailed] == 1 })
		expect(t, r.Health(t.Context()), "backlog", waybill.HealthOK, "1 waiting, none due")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13: Health ends with its context if the store does not answer, and a store that cannot count has no backlog.
func TestHealthIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, &stuckCounter{faulty{OutboxStore: newStore(t)}}, newBus(), relay.Options{})
		stop := begin(t, r)
		patience.Pass(t, time.Minute)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		h := r.Health(ctx)
		if d := time.Since(start); d > time.Second || !h.Ready {
			t.Errorf("after %s: %s", d, h)
		}
		expect(t, h, "backlog", waybill.HealthDegraded, "unknown")
		if err := stop(); err != nil {
			t.Error(err)
		}
		if h := newRelay(t, plain{newStore(t)}, newBus(), relay.Options{}).Health(t.Context()); len(h.Checks) != 1 {
			t.Errorf("%s", h)
		}
	})
}

type stuckCounter struct{ faulty }

func (*stuckCounter) Counts(ctx context.Context) ([]admin.Count, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func attrs(set attribute.Set) string { return set.Encoded(attribute.DefaultEncoder()) }

// collect returns the values of a metric by its labels.
func collect(t *testing.T, reader *metric.ManualReader, name string) map[string]int64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := reader.Collect(context.WithoutCancel(t.Context()), &rm); err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					out[attrs(p.Attributes)] = p.Value
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					out[attrs(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					out[attrs(p.Attributes)] = int64(p.Count)
				}
			}
		}
	}
	return out
}

// ST-17: a route with due messages that no relay serves is named by health, the log and a metric; a scheduled message
// is no reason, nor is one that is not old enough.
func TestUnservedRoutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		reader := metric.NewManualReader()
		var buf sharedtest.Log
		o := relay.Options{Logger: slog.New(slog.NewTextHandler(&buf, nil)), MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}
		r := newRelay(t, s, b, o)
		stop := begin(t, r)
		stage(t, s, append(on("odrers", 2), msg("p", "", waybill.InLane(waybill.LaneHigh)), msg("later", "", waybill.Routes("tomorrow"), waybill.Delay(24*time.Hour)))...)
		patience.Pass(t, 4*time.Minute+59*time.Second)
		expect(t, r.Health(t.Context()), "unserved", waybill.HealthOK, "none")
		if got := collect(t, reader, "waybill.relay.unserved"); len(got) > 0 {
			t.Errorf("%v", got)
		}
		patience.Pass(t, 62*time.Second)
		h := r.Health(t.Context())
		expect(t, h, "unserved", waybill.HealthDegraded, "odrers (2 waiting, the oldest due one for 6m1s)")
		expect(t, h, "unserved", waybill.HealthDegraded, "set Lanes of route default")
		if !h.Ready {
			t.Errorf("%s", h)
		}
		if got := collect(t, reader, "waybill.relay.unserved"); len(got) != 2 || got["route=odrers"] != 2 || got["route=default/high"] != 1 {
			t.Errorf("%v", got)
		}
		if got := collect(t, reader, "waybill.relay.partitions"); got["route=default,transport=relay_test"] != 64 {
			t.Errorf("%v", got)
		}
		patience.Pass(t, time.Hour)
		if err := stop(); err != nil {
			t.Error(err)
		}
		l := buf.Take()
		if n := strings.Count(l, "event=relay.unserved_route route=odrers"); n < 2 || n > 4 {
			t.Errorf("%d warnings in an hour:\n%s", n, l)
		}
		if strings.Contains(l, "tomorrow") {
			t.Error("a scheduled message is not due")
		}
		if h := newRelay(t, s, b, relay.Options{StaleAfter: -1}).Health(t.Context()); strings.Contains(h.String(), "unserved") {
			t.Errorf("off: %s", h)
		}
	})
}

// slowCount is a store that counts until it is asked no more.
type slowCount struct{ core.OutboxStore }

func (slowCount) Counts(ctx context.Context) ([]admin.Count, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// RL-13: a scrape of a relay whose store does not count in time brings the other metrics within the ten seconds that a
// scrape has.
func TestMetricsWithoutCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		stop := begin(t, newRelay(t, slowCount{newStore(t)}, newBus(), relay.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}))
		patience.Pass(t, time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel()
		var rm metricdata.ResourceMetrics
		err := reader.Collect(ctx, &rm)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Errorf("the scrape ended with %v", err)
		}
		got := map[string]bool{}
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				got[m.Name] = true
			}
		}
		if !got["waybill.relay.partitions"] || !got["waybill.relay.published"] || got["waybill.relay.records"] {
			t.Errorf("%v", got)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// DB-19: several databases in one process, a relay each, are told apart in logs, metrics and the store.
func TestRelaysAreNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		mp := metric.NewMeterProvider(metric.WithReader(reader))
		var buf sharedtest.Log
		log := slog.New(slog.NewTextHandler(&buf, nil))
		b := newBus()
		for i, name := range []string{"tenant-1 to bus", "tenant-2 to bus", ""} {
			mem := newStore(t)
			s := &faulty{OutboxStore: mem}
			stop := begin(t, newRelay(t, s, b, relay.Options{Name: name, Logger: log, MeterProvider: mp}))
			stage(t, mem, on("default", i+1)...)
			time.Sleep(time.Second)
			if name != "" {
				if got := collect(t, reader, "waybill.relay.published"); got["relay="+name+",route=default,transport=relay_test"] != int64(i+1) {
					t.Errorf("%v", got)
				}
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			if owner := s.heartbeats[0].Self.Name; name != "" && owner != name || name == "" && !strings.HasPrefix(owner, "relay_test to relay_test ") && !strings.HasPrefix(owner, "memory to relay_test ") {
				t.Errorf("owner %q", owner)
			}
		}
		if got := collect(t, reader, "waybill.relay.published"); got["route=default,transport=relay_test"] != 3 {
			t.Errorf("a name that was not set is no label: %v", got)
		}
		for _, m := range []string{"waybill.relay.read.duration", "waybill.relay.settle.duration"} {
			if got := collect(t, reader, m); got["relay=tenant-1 to bus"] == 0 {
				t.Errorf("%s: %v", m, got)
			}
		}
		for line := range strings.Lines(buf.Take()) {
			if !strings.Contains(line, "relay=") {
				t.Errorf("no relay in %s", line)
			}
		}
	})
}
