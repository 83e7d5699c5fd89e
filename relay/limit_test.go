package relay_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// clocked notes when each message was tried.
type clocked struct {
	*bus
	mu sync.Mutex
	at []time.Time
}

func clock(b *bus) *clocked {
	c := &clocked{bus: b}
	b.before = func(_ context.Context, batch []waybill.Envelope) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for range batch {
			c.at = append(c.at, time.Now())
		}
	}
	return c
}

// most is the greatest number tried within any period.
func (c *clocked) most(period time.Duration) (most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, j := 0, 0; j < len(c.at); j++ {
		for c.at[j].Sub(c.at[i]) >= period {
			i++
		}
		most = max(most, j-i+1)
	}
	return most
}

// RL-13: the rate holds for every second, and other routes are not slowed.
func TestRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate   float64
		n      int
		key    func(int) string
		hidden bool // the store can neither wake the relay nor renew leases
		fails  bool // the first attempt of each
	}{
		{rate: 100, n: 1000, key: noKey},
		{rate: 100, n: 1000, key: noKey, hidden: true},
		{rate: 100, n: 500, key: noKey, fails: true},
		{rate: 100, n: 1000, key: func(i int) string { return strconv.Itoa(i % 7) }},
		{rate: 0.5, n: 10, key: noKey},
		{rate: 0.5, n: 10, key: noKey, hidden: true},
		{rate: 2000, n: 4000, key: noKey},
	} {
		t.Run(fmt.Sprintf("%+v", c.rate), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem, slow, fast := newStore(t), clock(newBus()), newBus()
				s := &faulty{OutboxStore: mem}
				if c.hidden {
					s.OutboxStore = plain{mem}
				}
				tries := c.n
				if c.fails {
					tries *= 2
					slow.answer = func(_ *waybill.Envelope, nth int) error {
						if nth == 1 {
							return errNo
						}
						return nil
					}
				}
				slow.latency = 10 * time.Millisecond
				batch := msgs(c.n, c.key)
				for i := range batch {
					batch[i].Routes = []string{"slow"}
				}
				stage(t, mem, batch...)
				stage(t, mem, on("fast", 1000)...)
				start := time.Now()
				o := relay.Options{PollMax: time.Second, Lease: 5 * time.Second, PublishTimeout: time.Second, Routes: []relay.Route{
					{Name: "slow", RatePerSecond: c.rate, Backoff: &waybill.Backoff{Kind: waybill.BackoffConstant, Base: time.Second, Jitter: waybill.JitterNone}},
					{Name: "fast", Publisher: fast},
				}}
				stop := begin(t, newRelay(t, s, slow, o))
				within(t, time.Second, "the fast route", func() bool { return fast.count() == 1000 })
				ideal := time.Duration(float64(tries) / c.rate * float64(time.Second))
				patience.BudgetOf(t).Time(ideal*11/10+4*time.Second, "the rate of the slow route")
				patience.BudgetOf(t).Calls(220, "50 attempts a second that fail, each with a read, a Due and a settle")
				within(t, ideal+ideal/10+5*time.Second, "the slow route", func() bool { return slow.count() == c.n })
				took := time.Since(start)
				if err := stop(); err != nil {
					t.Error(err)
				}
				for _, sec := range []int{1, 3, 10} {
					if got, want := slow.most(time.Duration(sec)*time.Second), int(c.rate*float64(sec)+max(c.rate/10, 1)+0.5); got > want {
						t.Errorf("%d tried within %d s; want %d at most", got, sec, want)
					}
				}
				if took < ideal*9/10-2*time.Second || took > ideal*11/10+4*time.Second {
					t.Errorf("took %s; want about %s", took, ideal)
				}
				for _, o := range s.settls {
					for i := range o {
						if o[i].Event() == core.EventReleased {
							t.Fatalf("%s was read and not sent", o[i].Ref().ID)
						}
					}
				}
			})
		})
	}
}

// RL-13: one pass of a limited route goes on until nothing is due.
func TestRateOfRunOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		stage(t, s, msgs(50, noKey)...)
		start := time.Now()
		r := newRelay(t, s, b, relay.Options{Routes: []relay.Route{{RatePerSecond: 10}}})
		if c, err := r.RunOnce(t.Context()); err != nil || c.Published != 50 {
			t.Errorf("%+v, %v", c, err)
		}
		if d := time.Since(start).Round(time.Second); d != 5*time.Second {
			t.Errorf("took %s", d)
		}
		stage(t, s, msg("x", ""), msg("y", ""))
		start = time.Now()
		if c, err := r.RunOnce(t.Context()); err != nil || c.Published != 2 {
			t.Errorf("%+v, %v", c, err)
		}
		if d := time.Since(start); d < 100*time.Millisecond {
			t.Errorf("the next pass began with fresh tokens: %s", d)
		}
	})
}

// RL-13: an outage of a limited route, a pause of it, and a stop hand back at once what waits for its turn.
func TestRateAndOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(47*time.Second, "the pause of the last probe")
		s, b := newStore(t), newBus()
		broken := true
		b.answer = func(*waybill.Envelope, int) error {
			if broken {
				return down()
			}
			return nil
		}
		stage(t, s, msgs(40, noKey)...)
		r := newRelay(t, s, b, relay.Options{Routes: []relay.Route{{RatePerSecond: 10}}})
		stop := begin(t, r)
		patience.Pass(t, 20*time.Second)
		synctest.Wait()
		if st := states(s); st[core.StateProcessing] > 1 {
			t.Errorf("held in an outage: %v", st)
		}
		broken = false
		within(t, 45*time.Second, "some published", func() bool { return b.count() > 10 })
		if err := r.Pause(waybill.DefaultRoute); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		n := b.count()
		if st := states(s); st[core.StateProcessing] > 0 {
			t.Errorf("held in a pause: %v", st)
		}
		if err := r.Resume(waybill.DefaultRoute); err != nil {
			t.Error(err)
		}
		patience.Pass(t, 1050*time.Millisecond)
		if got := b.count() - n; got < 9 || got > 12 {
			t.Errorf("%d in the second after the pause", got)
		}
		start := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 10*time.Millisecond || states(s)[core.StateProcessing] > 0 {
			t.Errorf("stopped after %s with %v", d, states(s))
		}
	})
}

// RL-13: a rest saves up a tenth of a second's worth, no more.
func TestRateAfterRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), clock(newBus())
		stop := begin(t, newRelay(t, s, b, relay.Options{Routes: []relay.Route{{RatePerSecond: 100}}}))
		for i := range 3 {
			patience.Pass(t, time.Minute)
			stage(t, s, on("default", 300, func(m *waybill.Message) { m.ID += strconv.Itoa(i) })...)
		}
		within(t, 3*time.Second, "published", func() bool { return b.count() == 900 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		for period, want := range map[time.Duration]int{time.Millisecond: 10, 100 * time.Millisecond: 21, time.Second: 111} {
			if n := b.most(period); n > want {
				t.Errorf("%d within %s; want %d at most", n, period, want)
			}
		}
	})
}
