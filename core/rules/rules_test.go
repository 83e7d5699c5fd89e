package rules_test

import (
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// row is a ready record that fn changes.
func row(fn func(r *rules.Row)) *rules.Row {
	r := &rules.Row{Ref: core.Ref{Route: "r", Seq: 10, ID: "a", Version: 2}, State: core.StatePending}
	if fn != nil {
		fn(r)
	}
	return r
}

func timer(r *rules.Row) { r.Waits = true }
func retry(r *rules.Row) { r.Waits, r.State, r.Attempts = true, core.StateFailed, 1 }
func held(r *rules.Row)  { r.Holder = 1 }

func TestCancellation(t *testing.T) {
	t.Parallel()
	window := rules.Partition{Owner: 1, MaybeOutUpTo: 10}
	for _, tc := range []struct {
		name      string
		fn        func(r *rules.Row)
		partition rules.Partition
		want      waybill.CancelStatus
	}{
		{"ended", func(r *rules.Row) { r.State = core.StateAbandoned }, rules.Partition{}, waybill.CancelNotFound},
		{"held", held, rules.Partition{}, waybill.CancelInFlight},
		{"ready", nil, rules.Partition{}, waybill.CancelInFlight},
		{"ready, cancellable", func(r *rules.Row) { r.Cancellable = true }, rules.Partition{}, waybill.CancelDone},
		{"ready, crashed", func(r *rules.Row) { r.Crashes, r.MaybeSent = 1, true }, rules.Partition{}, waybill.CancelUncertain},
		{"ready, in a crash window", nil, window, waybill.CancelUncertain},
		{"ready, behind the window", func(r *rules.Row) { r.Seq = 11 }, window, waybill.CancelInFlight},
		{"a timer", timer, window, waybill.CancelDone},
		{"a retry", retry, rules.Partition{}, waybill.CancelDone},
		{"a retry in a crash window", retry, window, waybill.CancelUncertain},
	} {
		if got := rules.Cancellation(row(tc.fn), tc.partition); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestHold(t *testing.T) {
	t.Parallel()
	ref := row(nil).Ref
	old := ref
	old.Version--
	for _, tc := range []struct {
		name         string
		r            *rules.Row
		ref          core.Ref
		owns, locked bool
		want         core.HoldStatus
		writes       bool
	}{
		{"no record", nil, ref, true, false, core.HoldGone, false},
		{"an old version", row(nil), old, true, false, core.HoldGone, false},
		{"ended", row(func(r *rules.Row) { r.State = core.StatePublished }), ref, true, false, core.HoldGone, false},
		{"its own, of another partition, locked", row(held), ref, false, true, core.HoldGranted, false},
		{"of another partition", row(nil), ref, false, false, core.HoldGone, false},
		{"another's", row(func(r *rules.Row) { r.Holder = 2 }), ref, true, false, core.HoldSkipped, false},
		{"locked", row(nil), ref, true, true, core.HoldSkipped, false},
		{"free", row(nil), ref, true, false, core.HoldGranted, true},
	} {
		if holdStatus, writes := rules.Hold(tc.r, tc.ref, 1, tc.owns, tc.locked); holdStatus != tc.want || writes != tc.writes {
			t.Errorf("%s: got %v, writes %v; want %v, %v", tc.name, holdStatus, writes, tc.want, tc.writes)
		}
	}
}

func TestGivenUp(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		owner       core.Session
		term, asked int64
		before      bool
		want        error
	}{
		{1, 5, 5, false, nil},
		{1, 6, 5, true, nil},
		{0, 6, 5, true, nil},
		{2, 5, 5, false, core.ErrFenced},
		{1, 4, 5, false, core.ErrFenced},
	} {
		if before, err := rules.GivenUp(tc.owner, tc.term, 1, tc.asked); before != tc.before || !errors.Is(err, tc.want) {
			t.Errorf("%+v: got %v, %v", tc, before, err)
		}
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	rec := &core.Record{Ref: row(nil).Ref}
	no := errors.New("no")
	for _, tc := range []struct {
		name string
		r    *rules.Row
		o    core.Outcome
		owns bool
		want rules.Change
		err  error
	}{
		{"gone", nil, core.Retry(rec, no, time.Second), true, rules.Change{}, core.ErrChanged},
		{"another version", row(func(r *rules.Row) { r.Version++ }), core.Retry(rec, no, time.Second), true, rules.Change{}, core.ErrChanged},
		{"another's", row(nil), core.Retry(rec, no, time.Second), false, rules.Change{}, core.ErrFenced},
		{"failed", row(func(r *rules.Row) { r.Crashes = 2 }), core.Retry(rec, no, time.Second), true, rules.Change{
			Row: *row(func(r *rules.Row) { retry(r); r.Version = 3 }), Due: true, In: time.Second, Error: "no",
		}, nil},
		{"failed, unknown, held", row(held), core.Retry(rec, no, time.Second).WithUnknown(), false, rules.Change{
			Row: *row(func(r *rules.Row) { retry(r); r.Version, r.MaybeSent = 3, true }), Due: true, In: time.Second, Error: "no",
		}, nil},
		{
			"released by its owner while another holds it", row(func(r *rules.Row) { r.Holder = 2 }), core.Release(rec, 0, true), true,
			rules.Change{Row: *row(func(r *rules.Row) { r.Holder = 2 })},
			nil,
		},
		{
			"released", row(held), core.Release(rec, time.Hour, true), true,
			rules.Change{Row: *row(func(r *rules.Row) { r.Version, r.MaybeSent = 3, true })},
			nil,
		},
		{"abandoned, with a key", row(func(r *rules.Row) { r.Keyed = true }), core.Abandon(rec, waybill.ReasonRejected, no), true, rules.Change{
			Row: *row(func(r *rules.Row) {
				r.State, r.Reason, r.Keyed, r.Blocks, r.Version, r.Attempts = core.StateAbandoned, waybill.ReasonRejected, true, true, 3, 1
			}), Error: "no",
		}, nil},
	} {
		got, err := rules.Settle(tc.r, &tc.o, 1, tc.owns)
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: got %+v, %v; want %+v, %v", tc.name, got, err, tc.want, tc.err)
		}
	}
}

func TestObstructs(t *testing.T) {
	t.Parallel()
	keyed := func(fn func(r *rules.Row)) *rules.Row {
		r := row(fn)
		r.Keyed = true
		return r
	}
	gone := func(r *rules.Row) { r.State, r.Blocks = core.StateAbandoned, true }
	for _, tc := range []struct {
		name     string
		r        *rules.Row
		blocking bool
		want     core.BlockReason
	}{
		{"ready", keyed(nil), true, 0},
		{"a timer", keyed(timer), true, 0},
		{"a retry", keyed(retry), false, core.BlockedByRetry},
		{"a retry without a key", row(retry), false, 0},
		{"its own hold", keyed(held), false, 0},
		{"another's hold", row(func(r *rules.Row) { r.Holder = 2 }), false, core.BlockedByHold},
		{"abandoned", keyed(gone), false, 0},
		{"abandoned, on a route that blocks", keyed(gone), true, core.BlockedByAbandoned},
	} {
		if got := tc.r.Obstructs(1, tc.blocking); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

// The owner alone ends a record that it can have out. A notice tells it of other records that it can remember.
func TestEndsBesideTheOwner(t *testing.T) {
	t.Parallel()
	type answer struct{ sweeps, sweepTells, decides, decideTells bool }
	owned, free := rules.Partition{Owner: 1}, rules.Partition{}
	for _, tc := range []struct {
		name      string
		fn        func(r *rules.Row)
		partition rules.Partition
		want      answer
	}{
		{"ready", nil, owned, answer{}},
		{"ready, no owner", nil, free, answer{true, false, true, false}},
		{"ready, cancellable", func(r *rules.Row) { r.Cancellable = true }, owned, answer{false, false, true, true}},
		{"a timer", timer, owned, answer{true, false, true, false}},
		{"a retry", retry, owned, answer{true, true, true, true}},
		{"a retry, no owner", retry, free, answer{true, true, true, false}},
		{"held", held, free, answer{}},
		{"ended", func(r *rules.Row) { r.State = core.StatePublished }, free, answer{}},
	} {
		r := row(tc.fn)
		r.Keyed = true
		var got answer
		got.sweeps, got.sweepTells = rules.Sweeps(r, tc.partition)
		got.decides, got.decideTells = rules.Decides(r, tc.partition)
		if got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
}
