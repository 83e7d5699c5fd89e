package memory_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// waited is what a Wait of an hour on the route said, and when.
type waited struct {
	cause core.WakeCause
	after time.Duration
}

// bubble is a kit in virtual time.
func bubble(t *testing.T, fn func(t *testing.T, k *kit, wait func() <-chan waited)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		k := &kit{TB: t, Store: newStore(t)}
		k.join(1, partition)
		fn(t, k, func() <-chan waited {
			done := make(chan waited, 1)
			start := time.Now()
			go func() {
				cause, err := k.Wait(t.Context(), []string{route}, time.Hour)
				if err != nil {
					t.Error(err)
				}
				done <- waited{cause, time.Since(start)}
			}()
			synctest.Wait()
			return done
		})
	})
}

func TestWaitIsTold(t *testing.T) { // DB-10
	t.Parallel()
	bubble(t, func(t *testing.T, k *kit, wait func() <-chan waited) {
		t.Helper()
		for _, step := range []struct {
			name    string
			happens func()
		}{
			{"a commit", func() { k.stage(msg("a", waybill.Key("x"))) }},
			{"a retry", func() { k.retry("a", 0) }},
			{"a release", func() { k.no(k.settle(1, core.Release(&k.due(1, 1).Retries[0], 0, false))[0]) }},
			{"a decision", func() {
				k.no(k.settle(1, core.Retry(&k.due(1, 1).Retries[0], errNo, time.Hour))[0])
				k.no(k.DecideHead(t.Context(), route, "x", "a", admin.HeadSkip))
			}},
			{"a redrive", func() { k.fact("redriven", k.redrive(admin.RedriveRequest{All: true, Force: true}).Changed == 1) }},
		} {
			first, second := wait(), wait()
			time.Sleep(time.Second)
			step.happens()
			for _, done := range []<-chan waited{first, second} {
				if got := <-done; got != (waited{core.WakeNotify, time.Second}) {
					t.Errorf("%s: %+v", step.name, got)
				}
			}
			k.fact("again, until it is looked at", (<-wait()).after == 0)
			for range 3 {
				k.fact("but calmly", (<-wait()).after > 0)
			}
			k.read(1)
			k.due(1, 9)
			idle := wait()
			k.fact("nothing new", len(idle) == 0)
			k.stage(msg(waybill.NewID()))
			<-idle
			k.read(1)
		}
		k.stage(msg("b"))
		k.fact("what came between two calls", (<-wait()).after == 0)
		k.heartbeat(core.HeartbeatRequest{Self: member(1, 2, 1), Leave: true})
		k.fact("of a route that nobody owns", (<-wait()).after == 0)
		idle := wait()
		k.fact("once", len(idle) == 0)
		k.stage(msg("c"))
		<-idle
	})
}

// Two owners of one route: what one of them has read may be the other's.
func TestWaitIsToldUntilAllHaveLooked(t *testing.T) { // DB-10
	t.Parallel()
	bubble(t, func(t *testing.T, k *kit, _ func() <-chan waited) {
		t.Helper()
		const other = "another"
		low, high := core.Partition{Route: other, To: 32}, core.Partition{Route: other, From: 32, To: 64}
		for i, u := range []core.Partition{low, high} {
			m := core.Member{Session: core.Session(10 + i), Heartbeats: 1, Routes: []core.ServedRoute{{Route: other, InitialPartitions: 2}}}
			k.heartbeat(core.HeartbeatRequest{Self: m, Join: true, Transfers: []core.Transfer{{Partition: u, To: m.Session}}})
		}
		k.stage(msg("a", waybill.Routes(other)))
		told := func() bool {
			cause, err := k.Wait(t.Context(), []string{route, other}, time.Second)
			k.no(err)
			return cause == core.WakeNotify
		}
		request := core.ReadRequest{Ranges: []core.Range{{RouteSlots: core.RouteSlots{Route: other, Slots: core.AllSlots}, UpToSeq: 9}}}
		k.fact("nobody has looked", told())
		k.fact("still nobody has looked", told())
		k.look(10, request)
		k.fact("one has not looked", told())
		k.look(11, request)
		k.fact("all have", !told())
	})
}

func TestWaitSleepsUntilScheduledMessage(t *testing.T) { // DB-10
	t.Parallel()
	bubble(t, func(t *testing.T, k *kit, wait func() <-chan waited) {
		t.Helper()
		patience.BudgetOf(t).Time(125*time.Second, "a timer and a retry of a minute")
		done := wait()
		time.Sleep(time.Second)
		tx := k.Begin()
		_, err := k.Stage(t.Context(), tx, msg("z"))
		k.no(err)
		tx.Rollback()
		k.stage(msg("a", waybill.Delay(time.Minute)))
		if got := <-done; got != (waited{core.WakeLimit, time.Minute + time.Second}) {
			t.Errorf("%+v", got)
		}
		k.fact("a timer that nobody puts in line", <-wait() == waited{core.WakeLimit, 100 * time.Millisecond})
		k.fact("and again", <-wait() == waited{core.WakeLimit, 100 * time.Millisecond})
		k.fact("it is put in line", k.due(1, 9).TimersReady == 1 && (<-wait()).cause == core.WakeNotify)
		k.read(1)
		k.retry("a", time.Minute)
		if got := <-wait(); got != (waited{core.WakeLimit, time.Minute}) {
			t.Errorf("a retry: %+v", got)
		}
	})
}

func TestWaitEnds(t *testing.T) { // DB-10
	t.Parallel()
	s := newStore(t)
	if cause, err := s.Wait(t.Context(), []string{route}, time.Millisecond); err != nil || cause != core.WakeLimit {
		t.Errorf("at its limit: %s, %v", cause, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if cause, err := s.Wait(ctx, []string{route}, time.Hour); err != nil || cause != core.WakeStop {
		t.Errorf("with its context: %s, %v", cause, err)
	}
}

// A database that goes back wakes the waiter.
func TestWaitIsToldOfARestore(t *testing.T) {
	t.Parallel()
	bubble(t, func(_ *testing.T, k *kit, wait func() <-chan waited) {
		img := k.Snapshot()
		done := wait()
		k.Restore(img)
		k.fact("woken", (<-done).cause == core.WakeNotify)
	})
}
