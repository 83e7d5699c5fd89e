package sqlite

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

func expectAbandoned(tb testing.TB, s *Store, id string, reason core.Reason) {
	tb.Helper()
	if r, err := s.Inspect(tb.Context(), route, id); err != nil || r.State != core.StateAbandoned || r.Reason != reason || r.Attempts != 0 {
		tb.Errorf("%s: %s %s, %d attempts, %v", id, r.State, r.Reason, r.Attempts, err)
	}
}

// OP-18: what is due and in nobody's hands is decided by the command itself.
func TestDecideDueWithoutAnOwner(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(s *Store){
		"nobody serves the route": func(*Store) {},
		"the unit is free": func(s *Store) {
			m := join(t, s, route)
			moves := []outbox.Move{}
			for _, u := range meet(t, s, outbox.Meeting{}).Units {
				moves = append(moves, outbox.Move{Unit: u.Unit, From: m.Session})
			}
			meet(t, s, outbox.Meeting{Self: m, Moves: moves})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, Options{})
			serve(s)
			stage(t, s, raw("a", "k"), raw("b", "k"), raw("c", "k"), raw("timer", "t", core.Delay(time.Hour)))
			for _, tc := range []struct {
				key, id string
				action  core.HeadAction
				want    error
			}{
				{"k", "b", core.HeadSkip, core.ErrNotFound},
				{"other", "a", core.HeadSkip, core.ErrNotFound},
				{"t", "timer", core.HeadSkip, core.ErrNotFound},
				{"k", "a", core.HeadRequeue, core.ErrNotFound},
				{"k", "a", core.HeadSkip, nil},
				{"k", "b", core.HeadPark, nil},
				{"k", "b", core.HeadPark, core.ErrNotFound},
			} {
				if err := s.DecideHead(t.Context(), route, tc.key, tc.id, tc.action); !errors.Is(err, tc.want) || errors.Is(err, core.ErrInFlight) {
					t.Errorf("%s %d: %v", tc.id, tc.action, err)
				}
			}
			expectAbandoned(t, s, "a", core.ReasonSkipped)
			expectAbandoned(t, s, "b", core.ReasonParked)
			self := join(t, s, route).Session
			if got := ids(read(t, s, self, route)); got != "c " {
				t.Errorf("ready: %s", got)
			}
		})
	}
}

// decide decides about a, and hands the control record that its owner is told by to owner.
func decide(tb testing.TB, s *Store, self outbox.Session, action core.HeadAction, owner func(c *outbox.Control)) error {
	tb.Helper()
	done := make(chan error, 1)
	go func() { done <- s.DecideHead(tb.Context(), route, "k", "a", action) }()
	for {
		if cs := page(tb, s, self, route).Control; len(cs) > 0 {
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

// OP-18: what is due and has an owner is decided by the owner, whom the command tells and waits for.
func TestDecideDueOfAnOwner(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settle func(r *outbox.Record) outbox.Outcome
		want   error
	}{
		"it does it":           {func(r *outbox.Record) outbox.Outcome { return outbox.Withdraw(r, core.ReasonParked) }, nil},
		"it was published":     {outbox.Published, core.ErrNotFound},
		"it waits for a retry": {func(r *outbox.Record) outbox.Outcome { return outbox.Retry(r, errNo, time.Hour) }, core.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, Options{})
			self := join(t, s, route).Session
			stage(t, s, raw("a", "k", core.DedupeKey("d")))
			r := get(t, s, self, route, "a")
			err := decide(t, s, self, core.HeadPark, func(c *outbox.Control) {
				want := outbox.Control{Number: c.Number, Kind: outbox.ControlDecide, Route: route, Slot: r.Slot, Key: "k", ID: "a", Seq: r.Seq, Reason: core.ReasonParked}
				if *c != want {
					t.Errorf("told %+v, want %+v", *c, want)
				}
				settle(t, s, self, tc.settle(r), outbox.Heeded(c))
			})
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if tc.want == nil {
				expectAbandoned(t, s, "a", core.ReasonParked)
				if got := stage(t, s, raw("b", "k", core.DedupeKey("d")))[0]; got.Duplicate {
					t.Error("what was withdrawn keeps its dedupe key")
				}
			}
		})
	}
}

// OP-18: a held record is not decided about, and a decision that nobody carries out stands.
func TestDecideDueInVain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{})
		self := join(t, s, route).Session
		stage(t, s, raw("a", "k"))
		began := time.Now()
		err := s.DecideHead(t.Context(), route, "k", "a", core.HeadSkip)
		if !errors.Is(err, core.ErrInFlight) || time.Since(began) < decideLimit || time.Since(began) > decideLimit+time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.DecideHead(ctx, route, "k", "a", core.HeadPark); core.ClassOf(err) != core.ClassOutage || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("its context ended: %v", err)
		}
		hold(t, s, self, get(t, s, self, route, "a"))
		if err := s.DecideHead(t.Context(), route, "k", "a", core.HeadSkip); !errors.Is(err, core.ErrInFlight) || time.Since(began) > decideLimit+3*time.Second {
			t.Errorf("held: %v", err)
		}
		if got, want := told(t, s, self), "4k:a 4k:a "; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	})
}
