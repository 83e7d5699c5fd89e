package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// fill stages n messages a route.
func fill(tb testing.TB, s *memory.Store, n int, routes ...string) {
	tb.Helper()
	for _, r := range routes {
		stage(tb, s, on(r, n)...)
	}
}

// fillLanes stages n messages in each lane of route; their ids begin with the name of the lane.
func fillLanes(tb testing.TB, s *memory.Store, route string, n int, in ...waybill.Lane) {
	tb.Helper()
	for _, l := range in {
		batch := on("lane"+string(l), n, waybill.Routes(route), waybill.InLane(l))
		stage(tb, s, batch...)
	}
}

// serial makes b publish one message after the other, each in d, in the order of calls.
func serial(b *bus, d time.Duration) {
	turn := make(chan struct{}, 1)
	b.before = func(_ context.Context, batch []waybill.Envelope) {
		turn <- struct{}{}
		time.Sleep(time.Duration(len(batch)) * d)
		<-turn
	}
}

// RL-13: routes that all have work get messages published in proportion to their weights, with either bottleneck: the
// time of a publish, or a broker that does one thing at a time.
func TestWeights(t *testing.T) {
	t.Parallel()
	const n = 2000
	for _, neck := range []string{"latency", "broker"} {
		for _, weights := range [][]int{{1, 3}, {1, 1, 8}} {
			t.Run(fmt.Sprint(neck, weights), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					patience.BudgetOf(t).Calls(250, "up to 200 batches a second, and what is read for them")
					mem, b := newStore(t), newBus()
					s := &faulty{OutboxStore: mem}
					switch neck {
					case "latency":
						b.latency = 100 * time.Millisecond
					case "broker":
						serial(b, time.Millisecond)
					}
					var routes []relay.Route
					sum := 0
					for i, w := range weights {
						name := string(rune('a' + i))
						routes = append(routes, relay.Route{Name: name, Weight: w})
						sum += w
						stage(t, mem, on(name, n)...)
					}
					stop := begin(t, newRelay(t, s, b, relay.Options{BatchSize: 20, Routes: routes}))
					within(t, time.Minute, "half", func() bool { return b.count() >= n })
					got := map[string]int{}
					for _, id := range b.ids()[:n] {
						got[id[:1]]++
					}
					for i, r := range routes {
						want := float64(n*weights[i]) / float64(sum)
						if ratio := float64(got[r.Name]) / want; ratio < 0.85 || ratio > 1.15 {
							t.Errorf("route %s got %d of %d; want %.0f", r.Name, got[r.Name], n, want)
						}
					}
					within(t, time.Minute, "all", func() bool { return b.count() == n*len(routes) })
					if err := stop(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// ST-19: while all lanes have work, they get 6, 3 and 1 of ten messages; the part that a lane does not use goes to the
// others.
func TestLanes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   []waybill.Lane
		want []float64 // parts of ten
	}{
		{[]waybill.Lane{waybill.LaneHigh, waybill.LaneNormal, waybill.LaneLow}, []float64{6, 3, 1}},
		{[]waybill.Lane{waybill.LaneHigh, waybill.LaneLow}, []float64{60. / 7, 10. / 7}},
		{[]waybill.Lane{waybill.LaneNormal, waybill.LaneLow}, []float64{7.5, 2.5}},
		{[]waybill.Lane{waybill.LaneLow}, []float64{10}},
	} {
		for _, neck := range []string{"latency", "broker"} {
			t.Run(fmt.Sprint(neck, c.in), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					patience.BudgetOf(t).Calls(250, "up to 200 batches a second, and what is read for them")
					mem, b := newStore(t), newBus()
					if neck == "broker" {
						serial(b, time.Millisecond)
					} else {
						b.latency = 100 * time.Millisecond
					}
					fillLanes(t, mem, "r", 1200, c.in...)
					stop := begin(t, newRelay(t, mem, b, relay.Options{BatchSize: 20, Routes: []relay.Route{{Name: "r", Lanes: true}}}))
					within(t, time.Minute, "the first 1,200", func() bool { return b.count() >= 1200 })
					// the window is in whole records, and calls in whole batches
					const tolerance = 0.8
					got := map[string]int{}
					for _, id := range b.ids()[:1200] {
						lane, _, _ := strings.Cut(id, "-")
						got[lane]++
					}
					for i, l := range c.in {
						if part := float64(got["lane"+string(l)]) / 120; math.Abs(part-c.want[i]) > tolerance {
							t.Errorf("lane %q got %.2f of 10; want %.2f", l, part, c.want[i])
						}
					}
					within(t, time.Minute, "all", func() bool { return b.count() == 1200*len(c.in) })
					if err := stop(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// ST-19: one message in the low lane gets through a flood in the high one, and one in the high lane through a flood
// in the low one, soon.
func TestOneMessageThroughAFlood(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]waybill.Lane{{waybill.LaneHigh, waybill.LaneLow}, {waybill.LaneLow, waybill.LaneHigh}} {
		synctest.Test(t, func(t *testing.T) {
			mem, b := newStore(t), newBus()
			b.latency = 20 * time.Millisecond
			var found atomic.Int64 // after so many reads
			s := &faulty{OutboxStore: mem}
			s.read = func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
				time.Sleep(10 * time.Millisecond)
				result, err := next()
				for _, r := range result.Ranges {
					if slices.ContainsFunc(r.Records, func(r core.Record) bool { return r.Envelope.ID == "one" }) {
						found.CompareAndSwap(0, int64(s.numReads()))
					}
				}
				return result, err
			}
			for i := range 2 {
				stage(t, mem, on("flood", 10000, waybill.Routes("r"), waybill.InLane(c[0]), func(m *waybill.Message) { m.ID += fmt.Sprint("-", i) })...)
			}
			stop := begin(t, newRelay(t, s, b, relay.Options{BatchSize: 200, Window: 4, Routes: []relay.Route{{Name: "r", Lanes: true}}}))
			time.Sleep(200 * time.Millisecond)
			stage(t, mem, msg("one", "", waybill.Routes("r"), waybill.InLane(c[1])))
			before := s.numReads()
			within(t, 55*time.Millisecond, "the one", func() bool { return b.arrivedOne("one") })
			// one that began at the same time, and the one that finds it
			if n := int(found.Load()) - before; n > 2 {
				t.Errorf("it was found by read %d", n)
			}
			if left := 20000 - b.count(); left < 10000 {
				t.Errorf("the flood was over: %d left", left)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func (b *bus) arrivedOne(id string) bool {
	return slices.Contains(b.ids(), id)
}

// RL-13 ST-19: the lanes of a route share its weight: a backlog in the low lane alone counts as much as another route.
func TestLanesShareTheWeight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.latency = 100 * time.Millisecond
		fillLanes(t, s, "r", 3000, waybill.LaneLow)
		fill(t, s, 3000, "other")
		stop := begin(t, newRelay(t, s, b, relay.Options{BatchSize: 50, Routes: []relay.Route{{Name: "r", Lanes: true}, {Name: "other"}}}))
		within(t, time.Minute, "half", func() bool { return b.count() >= 3000 })
		if a, o := b.arrivedOn("lanelow"), b.arrivedOn("other"); math.Abs(float64(a-o)) > 400 {
			t.Errorf("low lane %d, other route %d", a, o)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13 ST-19: lanes share the rate of their route in the same proportions, and all of them get on.
func TestLanesShareTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), clock(newBus())
		fillLanes(t, mem, "r", 2000, waybill.LaneHigh, waybill.LaneNormal, waybill.LaneLow)
		stop := begin(t, newRelay(t, mem, b, relay.Options{Routes: []relay.Route{{Name: "r", Lanes: true, RatePerSecond: 100}}}))
		patience.Pass(t, 20*time.Second)
		synctest.Wait()
		for lane, want := range map[string]int{"lanehigh": 1200, "lane": 600, "lanelow": 200} {
			if got := b.arrivedOn(lane); math.Abs(float64(got-want)) > 0.15*float64(want)+50 {
				t.Errorf("%s got %d; want %d", lane, got, want)
			}
		}
		if n := b.most(time.Second); n > 110 {
			t.Errorf("%d in a second", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		for _, r := range mem.Records() {
			if r.Crashes > 0 || r.State == core.StateProcessing {
				t.Fatalf("%+v", r)
			}
		}
	})
}

// ST-19: idle lanes cost no more than one route, and a message in any of them is found at once.
func TestIdleLanes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		s := &faulty{OutboxStore: mem}
		stop := begin(t, newRelay(t, s, b, relay.Options{Routes: []relay.Route{{Name: "r", Lanes: true}, {Name: "slow", RatePerSecond: 1}}}))
		patience.Pass(t, 10*time.Minute)
		if n := s.numReads(); n > 2*600/7 {
			t.Errorf("%d reads in ten idle minutes", n)
		}
		for i, l := range []waybill.Lane{waybill.LaneLow, waybill.LaneNormal, waybill.LaneHigh} {
			stage(t, mem, msg(strconv.Itoa(i), "", waybill.Routes("r"), waybill.InLane(l)))
			within(t, 2*time.Millisecond, "found", func() bool { return b.count() == i+1 })
			patience.Pass(t, time.Minute)
		}
		stage(t, mem, on("slow", 30)...)
		patience.Pass(t, 10*time.Second) // a backlog on the limited route: the others are still woken
		stage(t, mem, msg("x", "", waybill.Routes("r"), waybill.InLane(waybill.LaneLow)))
		within(t, 2*time.Millisecond, "found", func() bool { return b.arrivedOne("x") })
		before := s.numReads()
		patience.Pass(t, 10*time.Second)
		if n := s.numReads() - before; n > 40 {
			t.Errorf("%d reads in ten seconds beside a limited backlog", n)
		}
		patience.Pass(t, time.Minute)
		stage(t, mem, msg("slow-x", "", waybill.Routes("slow")))
		within(t, 2*time.Millisecond, "the limited one is awaited again", func() bool { return b.arrivedOne("slow-x") })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13 ST-19: a lane that could not go on for a while does not make up for it at the expense of others.
func TestNoCreditForRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		fillLanes(t, mem, "r", 3000, waybill.LaneHigh, waybill.LaneLow)
		r := newRelay(t, mem, b, relay.Options{Routes: []relay.Route{{Name: "r", Lanes: true, RatePerSecond: 100}}})
		if err := r.Pause("r/low"); err != nil {
			t.Fatal(err)
		}
		stop := begin(t, r)
		patience.Pass(t, 10*time.Second)
		if err := r.Resume("r/low"); err != nil {
			t.Error(err)
		}
		before := b.arrivedOn("lanehigh")
		patience.Pass(t, 7*time.Second)
		if n := b.arrivedOn("lanehigh") - before; before < 900 || n < 550 || n > 650 {
			t.Errorf("%d before, %d of 700 after; want 600", before, n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13: the confirms of a route of little weight are stored at once if its next read waits for them.
func TestSmallShareIsNotHeldUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.before = func(ctx context.Context, batch []waybill.Envelope) {
			if strings.HasPrefix(batch[0].ID, "big") {
				<-ctx.Done()
				return
			}
			time.Sleep(time.Millisecond)
		}
		stage(t, mem, on("big", 2000)...)
		stage(t, mem, on("small", 1000)...)
		begun := time.Now()
		stop := begin(t, newRelay(t, mem, b, relay.Options{BatchSize: 50, DrainTimeout: -1, Routes: []relay.Route{{Name: "big", Weight: 19}, {Name: "small"}}}))
		within(t, time.Minute, "the small one", func() bool { return b.count() >= 1000 })
		if took := time.Since(begun); took > 500*time.Millisecond {
			t.Errorf("1000 messages, 1 ms a batch, took %s", took)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-13: a relay that asked for another number of partitions than the route has says so, once; one that asked for none
// does not.
func TestPartitionsDiffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		var logs [4]bytes.Buffer
		var stops []func() error
		for i, partitions := range []int{4, 4, 8, 0} {
			routes := []relay.Route{{Partitions: partitions}, {Name: "lanes", Lanes: true, Partitions: partitions}, {Name: "other"}}
			o := relay.Options{Logger: slog.New(slog.NewTextHandler(&logs[i], nil)), Routes: routes}
			stops = append(stops, begin(t, newRelay(t, s, newBus(), o)))
			time.Sleep(time.Second)
		}
		patience.Pass(t, time.Minute)
		for i, stop := range stops {
			if err := stop(); err != nil {
				t.Error(err)
			}
			want := 0
			if i == 2 {
				want = 4
			}
			if n := strings.Count(logs[i].String(), "event=relay.partitions_differ"); n != want {
				t.Errorf("relay %d warned %d times, want %d:\n%s", i, n, want, logs[i].String())
			}
		}
		for _, name := range []string{waybill.DefaultRoute, "lanes", "lanes/high", "lanes/low"} {
			if line := "event=relay.partitions_differ route=" + name + " partitions=4 asked=8"; !strings.Contains(logs[2].String(), line) {
				t.Errorf("no line %q", line)
			}
		}
	})
}

// RL-13: with sub-routes a backlog of one tenant delays no other one: while it is sent, the others get as much.
func TestSubRoutes(t *testing.T) {
	t.Parallel()
	const subRoutes, backlog, small = 8, 10_000, 100
	route := func(tenant string) string { return waybill.SubRoute("r", tenant, subRoutes) }
	others := []string{"b", "c", "d"}
	for _, tenant := range others {
		if route(tenant) == route("a") {
			t.Fatalf("%s has the sub-route of a: choose another name", tenant)
		}
	}
	for _, neck := range []string{"latency", "broker"} {
		for _, rate := range []float64{0, 1000} {
			t.Run(fmt.Sprint(neck, rate), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					mem, b := newStore(t), newBus()
					if neck == "broker" {
						serial(b, time.Millisecond)
					} else {
						b.latency = 100 * time.Millisecond
					}
					stage(t, mem, on("a", backlog, waybill.Routes(route("a")))...)
					for _, tenant := range others {
						stage(t, mem, on(tenant, small, waybill.Routes(route(tenant)))...)
					}
					opts := relay.Options{BatchSize: 20, Routes: []relay.Route{{Name: "r", SubRoutes: subRoutes, RatePerSecond: rate}}}
					stop := begin(t, newRelay(t, mem, b, opts))
					left := func() int {
						n := len(others) * small
						for _, id := range b.ids() {
							if id[0] != 'a' {
								n--
							}
						}
						return n
					}
					within(t, time.Minute, "the others", func() bool { return left() == 0 })
					// each of the others gets as much, but for messages on their way
					if got := b.count() - len(others)*small; got > 3*small+2*opts.BatchSize*relay.DefaultWindow {
						t.Errorf("%d messages of the backlog were sent before %d of %d others", got, small, len(others))
					}
					if err := stop(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// A route's own name, its lanes in every sub-route, and the faults that sub-routes can have.
func TestNamesOfSubRoutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		for i, r := range []string{"r", waybill.SubRoute("r", "x", 3), waybill.SubRoute("r", "yz", 3)} {
			for _, l := range []waybill.Lane{waybill.LaneHigh, waybill.LaneNormal, waybill.LaneLow} {
				stage(t, mem, on(fmt.Sprint(i, l), 2, waybill.Routes(r), waybill.InLane(l))...)
			}
		}
		r := newRelay(t, mem, b, relay.Options{Routes: []relay.Route{{Name: "r", SubRoutes: 3, Lanes: true}}})
		stop := begin(t, r)
		within(t, time.Minute, "all", func() bool { return b.count() == 18 })
		if err := r.Pause("r"); err != nil {
			t.Error(err)
		}
		stage(t, mem, on("late", 1, waybill.Routes(waybill.SubRoute("r", "x", 3)))...)
		patience.Pass(t, time.Minute)
		if b.count() != 18 {
			t.Error("a sub-route of a paused route was sent")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		routes []relay.Route
		says   string
	}{
		{[]relay.Route{{Name: "r", SubRoutes: -1}}, "Routes[0].SubRoutes: -1"},
		{[]relay.Route{{Name: "r", SubRoutes: waybill.MaxSubRoutes + 1}}, "Routes[0].SubRoutes: 65"},
		{[]relay.Route{{Name: "r", SubRoutes: 2}, {Name: "r#1"}}, `sub-route "r#1" is listed as a route too`},
		{[]relay.Route{{Name: strings.Repeat("r", waybill.MaxNameBytes), SubRoutes: 2}}, "Routes[0].SubRoutes: the name of its sub-route"},
	} {
		if _, err := relay.New(newStore(t), newBus(), relay.Options{Routes: c.routes}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %s", err, c.says)
		}
	}
}
