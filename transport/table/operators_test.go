package table_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	memstore "github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transport/table"
)

// A table queue without any relay is cleaned: expired records are parked, and records after their retention go. The
// process ends that with its last subscription.
//
// DB-09
func TestCleansWithoutARelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := storeWith(t, memstore.Options{Retention: waybill.Retention{Abandoned: time.Hour}})
		tr := newTable(t, s, table.Options{})
		r := subscribe(t, tr)
		stage(t, s, message("a", waybill.TTL(time.Minute), waybill.Routes("nobody reads it")))
		patience.Pass(t, 3*time.Minute)
		if rs := s.mem.Records(); len(rs) != 1 || rs[0].State != core.StateAbandoned || rs[0].Reason != waybill.ReasonExpired {
			t.Errorf("after its time: %+v", rs)
		}
		patience.Pass(t, 2*time.Hour)
		if rs := s.mem.Records(); len(rs) != 0 {
			t.Errorf("after its retention: %+v", rs)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
		stage(t, s, message("b", waybill.TTL(time.Minute)))
		patience.Pass(t, time.Hour)
		if rs := s.mem.Records(); len(rs) != 1 || rs[0].State != core.StatePending {
			t.Errorf("without a subscription: %+v", rs)
		}
	})
}

// Cleaning can be left to others.
func TestCleansNotIfOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := storeWith(t, memstore.Options{})
		subscribe(t, newTable(t, s, table.Options{CleanInterval: -1}))
		stage(t, s, message("a", waybill.TTL(time.Minute), waybill.Routes("nobody reads it")))
		patience.Pass(t, time.Hour)
		if rs := s.mem.Records(); len(rs) != 1 || rs[0].State != core.StatePending {
			t.Errorf("%+v", rs)
		}
	})
}

// OP-03: the alerts of a relay and of a broker's consumer work for a table queue: age of the oldest message,
// numbers of records, parked messages. A queue without records has 0 and not nothing.
func TestGauges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := storeWith(t, memstore.Options{})
		reader := metric.NewManualReader()
		provider := metric.NewMeterProvider(metric.WithReader(reader))
		tr := newTable(t, s, table.Options{MeterProvider: provider})
		c, err := consumer.New(tr, consumer.Options{Logger: quiet, MeterProvider: provider})
		if err != nil {
			t.Fatal(err)
		}
		refuse := waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			if d.Envelope.ID == "later" {
				return 0, waybill.RetryAfter(errors.New("not yet"), time.Hour)
			}
			return 0, waybill.Reject(errors.New("no"))
		}}
		if err := c.Handle(waybill.Subscription{Queue: "mails"}, refuse); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		series := func() string {
			all := gauges(t, reader)
			for _, name := range []string{"held", "prefetch", "connected"} { // the consumer's own
				delete(all, "waybill.consumer."+name+" mails ")
			}
			return fmt.Sprint(all["waybill.relay.records mails pending"], all["waybill.relay.records mails failed"],
				all["waybill.relay.records mails abandoned"], all["waybill.relay.oldest.age mails pending"],
				all["waybill.consumer.parked.depth mails "], len(all))
		}
		if got, want := series(), "0 0 0 0 0 6"; got != want {
			t.Errorf("at first: %s, want %s", got, want)
		}
		stage(t, s, message("later"), message("a"), message("b"), message("c", waybill.Delay(time.Minute)),
			message("d", waybill.Routes("another")))
		patience.Pass(t, 40*time.Second)
		if got, want := series(), "1 1 2 0 2 6"; got != want {
			t.Errorf("after 40 s: %s, want %s", got, want)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		all := gauges(t, reader)
		if _, there := all["waybill.relay.records mails pending"]; there {
			t.Errorf("without a subscription: %v", all)
		}
	})
}

// gauges returns the values of all gauges by name, route or queue, and state.
func gauges(t *testing.T, reader *metric.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			label := func(set attribute.Set) string {
				value := func(key attribute.Key) string { v, _ := set.Value(key); return v.AsString() }
				return m.Name + " " + value("route") + value("queue") + " " + value("state")
			}
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					out[label(p.Attributes)] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					out[label(p.Attributes)] = p.Value
				}
			}
		}
	}
	return out
}

// Parked messages are those that a consumer gave up, not those that the application took back.
func TestParkedAreNotCancelled(t *testing.T) {
	t.Parallel()
	s := storeWith(t, memstore.Options{Retention: waybill.Retention{Cancelled: time.Hour}})
	tr := newTable(t, s, table.Options{})
	r := subscribe(t, tr)
	stage(t, s, message("a", waybill.DedupeKey("k"), waybill.Delay(time.Hour)))
	stage(t, s, message("b", waybill.Replace("k"), waybill.Delay(time.Hour)), message("c"))
	settled(t, r, core.AckReject(receive(t, r, 1)[0], waybill.ReasonRejected, errors.New("no")))
	counts, err := tr.CountParked(t.Context(), "mails")
	if err != nil || len(counts) != 1 || counts[waybill.ReasonRejected] != 1 {
		t.Error(counts, err)
	}
	list, err := tr.ListParked(t.Context(), "mails", admin.ParkedFilter{}, 10)
	if err != nil || len(list) != 1 || list[0].Envelope.ID != "c" || list[0].Position != 1 {
		t.Error(list, err)
	}
	if n, err := tr.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "mails", All: true}); err != nil || n != 1 {
		t.Error(n, err)
	}
	if rs := s.mem.Records(); len(rs) != 3 {
		t.Errorf("%+v", rs)
	}
}

// A message whose dedupe key another one has stays parked, and its result says why; the others are replayed. Thousands
// are replayed and purged as well.
func TestReplaysWhatItCan(t *testing.T) {
	t.Parallel()
	s := storeWith(t, memstore.Options{})
	tr := newTable(t, s, table.Options{})
	r, err := tr.Subscribe(t.Context(), core.Subscription{Queue: "mails", Concurrency: 3000, Prefetch: 3000})
	if err != nil {
		t.Fatal(err)
	}
	const n = 2500
	var all []waybill.Message
	for i := range n {
		all = append(all, message(fmt.Sprintf("m%04d", i)))
	}
	stage(t, s, append(all, message("old", waybill.DedupeKey("k")))...)
	var acks []core.Ack
	for _, d := range receive(t, r, n+1) {
		acks = append(acks, core.AckReject(d, waybill.ReasonRejected, errors.New("no")))
	}
	settled(t, r, acks...)
	stage(t, s, message("new", waybill.DedupeKey("k"), waybill.Delay(time.Hour)))
	results, seen := map[string]error{}, 0
	done, err := tr.ReplayParked(t.Context(), admin.ParkedRequest{
		Queue: "mails", All: true,
		Result:   func(p admin.Parked, err error) { results[p.Envelope.ID] = err },
		Progress: func(looked, total int) { seen = max(seen, looked*10_000/total) },
	})
	if err != nil || done != n || len(results) != n+1 || seen != 10_000 {
		t.Error(done, err, len(results), seen)
	}
	for id, err := range results {
		if stays := id == "old"; stays != (err != nil) {
			t.Errorf("%s: %v", id, err)
		}
	}
	for _, d := range receive(t, r, n) {
		settled(t, r, core.AckReject(d, waybill.ReasonRejected, errors.New("again")))
	}
	if done, err = tr.PurgeParked(t.Context(), admin.ParkedRequest{Queue: "mails", All: true, Limit: 2000}); err != nil || done != 2000 {
		t.Error(done, err)
	}
	if depth, err := tr.ParkedDepth(t.Context(), "mails"); err != nil || depth != n+1-2000 {
		t.Error(depth, err)
	}
}

// A store without the capabilities says so.
func TestParkedNeedsCapabilities(t *testing.T) {
	t.Parallel()
	tr := newTable(t, plain{newStore(t)}, table.Options{})
	req := admin.ParkedRequest{Queue: "mails", All: true}
	for what, call := range map[string]func() error{
		"depth":  func() error { _, err := tr.ParkedDepth(t.Context(), "mails"); return err },
		"list":   func() error { _, err := tr.ListParked(t.Context(), "mails", admin.ParkedFilter{}, 1); return err },
		"look":   func() error { _, err := tr.InspectParked(t.Context(), "mails", admin.ParkedFilter{}); return err },
		"replay": func() error { _, err := tr.ReplayParked(t.Context(), req); return err },
		"purge":  func() error { _, err := tr.PurgeParked(t.Context(), req); return err },
	} {
		if err := call(); !errors.Is(err, waybill.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := tr.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := tr.ParkedDepth(t.Context(), "mails"); !errors.Is(err, waybill.ErrClosed) {
		t.Error("closed:", err)
	}
}
