package sqlite

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

func expectAbandoned(tb testing.TB, s *Store, id string, reason waybill.Reason) {
	tb.Helper()
	if r, err := s.Inspect(tb.Context(), route, id); err != nil || r.State != core.StateAbandoned || r.Reason != reason || r.Attempts != 0 {
		tb.Errorf("%s: %s %s, %d attempts, %v", id, r.State, r.Reason, r.Attempts, err)
	}
}

// OP-18: a due record that no owner can have out is decided by the command itself.
func TestDecideDueWithoutAnOwner(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(s *Store){
		"nobody serves the route": func(*Store) {},
		"the partition is free": func(s *Store) {
			m := join(t, s, route)
			moves := []core.Transfer{}
			for _, u := range heartbeat(t, s, core.HeartbeatRequest{}).Partitions {
				moves = append(moves, core.Transfer{Partition: u.Partition, From: m.Session})
			}
			heartbeat(t, s, core.HeartbeatRequest{Self: m, Transfers: moves})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, Options{})
			serve(s)
			stage(t, s, raw("a", "k"), raw("b", "k"), raw("c", "k"), raw("timer", "t", waybill.Delay(time.Hour)))
			for _, tc := range []struct {
				key, id string
				action  admin.HeadAction
				want    error
			}{
				{"k", "b", admin.HeadSkip, waybill.ErrNotFound},
				{"other", "a", admin.HeadSkip, waybill.ErrNotFound},
				{"t", "timer", admin.HeadSkip, waybill.ErrNotFound},
				{"k", "a", admin.HeadRequeue, waybill.ErrNotFound},
				{"k", "a", admin.HeadSkip, nil},
				{"k", "b", admin.HeadSetAside, nil},
				{"k", "b", admin.HeadSetAside, waybill.ErrNotFound},
			} {
				if err := s.DecideHead(t.Context(), route, tc.key, tc.id, tc.action); !errors.Is(err, tc.want) ||
					errors.Is(err, waybill.ErrInFlight) {
					t.Errorf("%s %d: %v", tc.id, tc.action, err)
				}
			}
			expectAbandoned(t, s, "a", waybill.ReasonSkipped)
			expectAbandoned(t, s, "b", waybill.ReasonSetAside)
			self := join(t, s, route).Session
			if got := ids(read(t, s, self, route)); got != "c " {
				t.Errorf("ready: %s", got)
			}
		})
	}
}

// decide decides about a, and hands the notice that its owner is told by to owner.
func decide(tb testing.TB, s *Store, self core.Session, action admin.HeadAction, owner func(c *core.Notice)) error {
	tb.Helper()
	done := make(chan error, 1)
	go func() { done <- s.DecideHead(tb.Context(), route, "k", "a", action) }()
	for {
		if cs := page(tb, s, self, route).Notices; len(cs) > 0 {
			owner(&cs[0])
			return <-done
		}
		select {
		case err := <-done:
			return err
		case <-time.After(time.Millisecond):
		}
	}
}

// OP-18: a due record with an owner is decided by the owner, whom the command tells and waits for.
func TestDecideDueOfAnOwner(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settle func(r *core.Record) core.Outcome
		want   error
	}{
		"it does it":           {func(r *core.Record) core.Outcome { return core.Cancel(r, waybill.ReasonSetAside) }, nil},
		"it was published":     {core.Published, waybill.ErrNotFound},
		"it waits for a retry": {func(r *core.Record) core.Outcome { return core.Retry(r, errNo, time.Hour) }, waybill.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, Options{})
			self := join(t, s, route).Session
			stage(t, s, raw("a", "k"))
			r := get(t, s, self, route, "a")
			err := decide(t, s, self, admin.HeadSetAside, func(c *core.Notice) {
				want := core.Notice{
					Number: c.Number, Kind: core.NoticeDecide, Route: route, Slot: r.Slot, Key: "k", ID: "a",
					Seq: r.Seq, Reason: waybill.ReasonSetAside,
				}
				if *c != want {
					t.Errorf("told %+v, want %+v", *c, want)
				}
				settle(t, s, self, tc.settle(r), core.DeleteNotice(c))
			})
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if tc.want == nil {
				expectAbandoned(t, s, "a", waybill.ReasonSetAside)
			}
		})
	}
}

// OP-18: a due record that is cancellable and not held is nowhere out: it is ended although it has an owner.
func TestDecideDueThatIsCancellable(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	self := join(t, s, route).Session
	stage(t, s, raw("a", "k", waybill.DedupeKey("d")))
	if err := s.DecideHead(t.Context(), route, "k", "a", admin.HeadSetAside); err != nil {
		t.Fatal(err)
	}
	expectAbandoned(t, s, "a", waybill.ReasonSetAside)
	if got, want := told(t, s, self), "1k:a "; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	if got := stage(t, s, raw("b", "k", waybill.DedupeKey("d")))[0]; got.Duplicate {
		t.Error("what was cancelled keeps its dedupe key")
	}
}

// OP-18: a held record is not decided about, and a decision that its owner does not carry out stands.
func TestDecideDueInVain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(12*time.Second, "an owner that does nothing is waited for ten seconds")
		s := open(t, Options{})
		self := join(t, s, route).Session
		stage(t, s, raw("a", "k"))
		const limit = 10 * time.Second
		began := time.Now()
		err := s.DecideHead(t.Context(), route, "k", "a", admin.HeadSkip)
		if !errors.Is(err, waybill.ErrInFlight) || time.Since(began) < limit || time.Since(began) > limit+time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.DecideHead(ctx, route, "k", "a", admin.HeadSetAside); waybill.ClassOf(err) != waybill.ClassOutage ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its context ended: %v", err)
		}
		hold(t, s, self, get(t, s, self, route, "a"))
		if err := s.DecideHead(t.Context(), route, "k", "a", admin.HeadSkip); !errors.Is(err, waybill.ErrInFlight) ||
			time.Since(began) > limit+3*time.Second {
			t.Errorf("held: %v", err)
		}
		if got, want := told(t, s, self), "4k:a 4k:a "; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}
