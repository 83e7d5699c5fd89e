package relay_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// RL-01 RL-03 DB-10
func TestRunPublishesAndStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		patience.Pass(t, 3*time.Second) // idle
		start := time.Now()
		stage(t, s, msg("a", ""), msg("b", "k"), msg("c", "k"))
		within(t, 10*time.Millisecond, "all published", func() bool { return b.count() == 3 && len(s.Records()) == 0 })
		if d := time.Since(start); d > 5*time.Millisecond {
			t.Errorf("an idle relay took %s", d)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// RL-09
func TestRunOnceCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(e *waybill.Envelope, _ int) error {
			switch e.ID {
			case "retry":
				return errNo
			case "never":
				return &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonForbidden}
			}
			return nil
		}
		stage(t, s, msg("ok1", ""), msg("retry", "k"), msg("behind", "k"), msg("never", "j"), msg("ok2", "j"), msg("later", "", waybill.Delay(time.Hour)))
		got, err := newRelay(t, s, b, relay.Options{}).RunOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := relay.Counts{HandedOut: 4, Published: 2, Failed: 1, Abandoned: 1}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"ok1", "ok2"}, b.ids()); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(map[core.State]int{core.StatePending: 2, core.StateFailed: 1, core.StateAbandoned: 1}, states(s)); d != "" {
			t.Error(d)
		}
	})
}

// RL-11
func TestPipelining(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.latency = 100 * time.Millisecond
		stage(t, s, msgs(5000, func(i int) string { return fmt.Sprint("k", i%1000) })...)
		start := time.Now()
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		within(t, 10*time.Second, "drained", func() bool { return b.count() == 5000 })
		took := time.Since(start)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if b.maxIn < 500 {
			t.Errorf("%d confirms in flight at most; want 500", b.maxIn)
		}
		if b.maxCalls < 2 {
			t.Errorf("%d publishes at a time; want 2", b.maxCalls)
		}
		if b.overlaps > 0 {
			t.Errorf("two of one key were in flight %d times", b.overlaps)
		}
		if err := b.firstsInOrder(); err != nil {
			t.Error(err)
		}
		t.Logf("%d in flight, %d calls at a time, %s", b.maxIn, b.maxCalls, took)
		if took > 800*time.Millisecond {
			t.Errorf("took %s", took)
		}
	})
}

// RL-03: with the real broker in memory an unroutable message waits, and arrives once a queue is bound.
func TestUnroutableUntilBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		bus, err := memtransport.New(memtransport.Options{})
		if err != nil {
			t.Fatal(err)
		}
		stop := begin(t, newRelay(t, s, bus, relay.Options{}))
		stage(t, s, msg("a", "k"), msg("b", "k"))
		patience.Pass(t, time.Minute)
		synctest.Wait()
		if r := s.Records(); len(r) != 2 || r[0].Attempts == 0 || r[1].Attempts != 0 {
			t.Errorf("%+v", r)
		}
		if err := bus.Declare("q", "t.*"); err != nil {
			t.Fatal(err)
		}
		within(t, 5*time.Minute, "published", func() bool { return bus.Depth("q").Ready == 2 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
