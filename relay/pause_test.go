package relay_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// on makes n messages for a route, with ids that begin with its name.
func on(route string, n int, opts ...waybill.MessageOption) []waybill.Message {
	out := make([]waybill.Message, n)
	for i := range out {
		out[i] = msg(fmt.Sprintf("%s-%05d", route, i), "", append([]waybill.MessageOption{waybill.Routes(route)}, opts...)...)
	}
	return out
}

// arrivedOn counts arrivals by the part of their ids before the dash.
func (b *bus) arrivedOn(prefix string) (n int) {
	for _, id := range b.ids() {
		if strings.HasPrefix(id, prefix+"-") {
			n++
		}
	}
	return n
}

// RL-13: a route that is paused before Run is not handed out, and costs nothing, until it is resumed; others go on.
func TestPauseBeforeRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		s := &faulty{OutboxStore: mem}
		r := newRelay(t, s, b, relay.Options{Routes: []relay.Route{{Name: "a"}, {Name: "b"}}})
		if err := r.Pause("a"); err != nil {
			t.Fatal(err)
		}
		if err := r.Pause("a"); err != nil {
			t.Error(err)
		}
		stage(t, mem, append(on("a", 3), on("b", 3)...)...)
		stop := begin(t, r)
		patience.Pass(t, time.Minute)
		stage(t, mem, append(on("a", 3, waybill.ID("a-late")), msg("b-late", "", waybill.Routes("b")))[2:]...)
		within(t, 2*time.Millisecond, "b goes on", func() bool { return b.arrivedOn("b") == 4 })
		if n := b.arrivedOn("a"); n != 0 {
			t.Errorf("%d published while paused", n)
		}
		if n := s.numReads(); n > 20 {
			t.Errorf("%d reads in a minute beside a paused backlog", n)
		}
		if err := r.Resume("a"); err != nil {
			t.Error(err)
		}
		within(t, 2*time.Millisecond, "resumed", func() bool { return b.arrivedOn("a") == 4 })
		time.Sleep(100 * time.Millisecond) // within the wait that began while it was paused
		stage(t, mem, msg("a-next", "", waybill.Routes("a")))
		within(t, 2*time.Millisecond, "awaited again", func() bool { return b.arrivedOn("a") == 5 })
		patience.Pass(t, time.Minute)
		stage(t, mem, msg("a-last", "", waybill.Routes("a")))
		within(t, 2*time.Millisecond, "wakes for the resumed route", func() bool { return b.arrivedOn("a") == 6 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13: a resumed route is handed out at once, also if the store cannot wake the relay.
func TestResumeWithoutWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		r := newRelay(t, plain{mem}, b, relay.Options{Routes: []relay.Route{{Name: "a"}, {Name: "b"}}})
		stop := begin(t, r)
		if err := r.Pause("a"); err != nil {
			t.Fatal(err)
		}
		patience.Pass(t, time.Minute)
		stage(t, mem, on("a", 3)...)
		patience.Pass(t, 15*time.Second) // polls are 10 s apart
		if err := r.Resume("a"); err != nil {
			t.Fatal(err)
		}
		within(t, 2*time.Millisecond, "published", func() bool { return b.count() == 3 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13: pausing while it runs lets finish what is in flight, hands back the rest, and holds over the end of the run.
func TestPauseWhileRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(22*time.Second, "four publishes of 5 s")
		s, b := newStore(t), newBus()
		b.latency = 5 * time.Second
		stage(t, s, msgs(10, func(i int) string { return string(rune('a' + i%2)) })...)
		r := newRelay(t, s, b, relay.Options{})
		stop := begin(t, r)
		patience.Pass(t, time.Second) // two are in flight, eight wait behind them
		if err := r.Pause(waybill.DefaultRoute); err != nil {
			t.Fatal(err)
		}
		patience.Pass(t, time.Hour)
		synctest.Wait()
		if b.count() != 2 || b.calls != 1 {
			t.Errorf("%d published in %d calls", b.count(), b.calls)
		}
		if st := states(s); st[core.StatePending] != 8 || len(s.Records()) != 8 {
			t.Errorf("%v", st)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if c, err := r.RunOnce(t.Context()); err != nil || c.HandedOut != 0 {
			t.Errorf("a second run: %+v, %v", c, err)
		}
		if err := r.Resume(waybill.DefaultRoute); err != nil {
			t.Error(err)
		}
		if c, err := r.RunOnce(t.Context()); err != nil || c.Published != 8 {
			t.Errorf("a third run: %+v, %v", c, err)
		}
		if err := b.firstsInOrder(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13: records that a read in progress brings of a route that is paused meanwhile go back unsent.
func TestPauseDuringRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		s := &faulty{OutboxStore: mem, read: func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
			c, err := next()
			time.Sleep(500 * time.Millisecond)
			return c, err
		}}
		stage(t, mem, on("a", 3)...)
		r := newRelay(t, s, b, relay.Options{Routes: []relay.Route{{Name: "a"}}})
		stop := begin(t, r)
		time.Sleep(100 * time.Millisecond)
		if err := r.Pause("a"); err != nil {
			t.Fatal(err)
		}
		patience.Pass(t, time.Minute)
		if st := states(mem); st[core.StatePending] != 3 || b.count() > 0 {
			t.Errorf("%v, %d published", st, b.count())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13: an unknown route is a clear error, lanes can be paused together or one by one, and a call is safe at any time
// from any goroutine.
func TestPauseNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(500, "each pause and each resume is told to the store")
		s, b := newStore(t), newBus()
		var r *relay.Relay
		o := relay.Options{Routes: []relay.Route{{Name: "a", Lanes: true}, {Name: "b"}}}
		o.Hooks.OnPublished = func(e relay.Event) {
			if e.ID == "stop" {
				_ = r.Pause("b") // from a hook
			}
		}
		r = newRelay(t, s, b, o)
		for _, f := range []func(string) error{r.Pause, r.Resume} {
			err := f("c")
			if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), `"c"`) || !strings.Contains(err.Error(), "a, b") {
				t.Errorf("%v", err)
			}
		}
		stop := begin(t, r)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				for range 20 {
					time.Sleep(time.Duration(i+1) * time.Millisecond)
					if r.Pause("a") != nil || r.Resume("a") != nil {
						t.Error("failed")
					}
				}
			})
		}
		wg.Wait()
		if err := r.Pause("a/low"); err != nil {
			t.Error(err)
		}
		stage(t, s, msg("h", "", waybill.Routes("a"), waybill.InLane(waybill.LaneHigh)), msg("n", "", waybill.Routes("a")), msg("l", "", waybill.Routes("a"), waybill.InLane(waybill.LaneLow)))
		patience.Pass(t, time.Second)
		if got := fmt.Sprint(b.ids()); got != "[h n]" && got != "[n h]" {
			t.Errorf("%s published beside a paused lane", got)
		}
		if err := r.Pause("a"); err != nil {
			t.Error(err)
		}
		stage(t, s, msg("h2", "", waybill.Routes("a"), waybill.InLane(waybill.LaneHigh)), msg("stop", "", waybill.Routes("b")))
		patience.Pass(t, time.Second)
		stage(t, s, msg("b2", "", waybill.Routes("b")))
		patience.Pass(t, time.Second)
		if b.count() != 3 {
			t.Errorf("%v published", b.ids())
		}
		if err := errors.Join(r.Resume("a"), r.Resume("b")); err != nil {
			t.Error(err)
		}
		within(t, 2*time.Millisecond, "all", func() bool { return b.count() == 6 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
