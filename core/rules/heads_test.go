package rules_test

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// The records of a key have the numbers 1, 2, ... An operator decides about the one that is named.
func TestHeads(t *testing.T) {
	t.Parallel()
	ready, gone := func(*rules.Row) {}, func(r *rules.Row) { r.State, r.Blocks = core.StateAbandoned, true }
	const skip, requeue = admin.HeadSkip, admin.HeadRequeue
	for _, tc := range []struct {
		name                    string
		key                     []func(r *rules.Row)
		owner                   core.Session
		head, blocking, next    int64
		ahead                   int64 // of a record 9 on a route that blocks
		about                   int64
		skipped, requeuedChange rules.HeadChange
	}{
		{"two in line", []func(*rules.Row){ready, ready}, 0, 0, 0, 1, 1, 1, rules.HeadEnded, rules.HeadNone},
		{"the second in line", []func(*rules.Row){ready, ready}, 0, 0, 0, 1, 1, 2, rules.HeadNone, rules.HeadNone},
		{"in line, with an owner", []func(*rules.Row){ready}, 1, 0, 0, 1, 1, 1, rules.HeadTold, rules.HeadNone},
		{"a retry", []func(*rules.Row){retry, ready}, 1, 1, 1, 0, 1, 1, rules.HeadEnded, rules.HeadRequeued},
		{"behind a retry", []func(*rules.Row){retry, ready}, 1, 1, 1, 0, 1, 2, rules.HeadNone, rules.HeadNone},
		{"before a retry", []func(*rules.Row){ready, retry}, 0, 2, 2, 0, 2, 1, rules.HeadNone, rules.HeadNone},
		{"held", []func(*rules.Row){held, ready}, 0, 0, 0, 0, 1, 1, rules.HeadInFlight, rules.HeadInFlight},
		{"behind a held one", []func(*rules.Row){held, ready}, 0, 0, 0, 0, 1, 2, rules.HeadNone, rules.HeadNone},
		{"abandoned", []func(*rules.Row){gone, ready}, 1, 0, 1, 2, 1, 1, rules.HeadEnded, rules.HeadRequeued},
		{"behind an abandoned one", []func(*rules.Row){gone, ready}, 1, 0, 1, 2, 1, 2, rules.HeadTold, rules.HeadNone},
		{"abandoned, before a retry", []func(*rules.Row){gone, retry}, 1, 2, 1, 0, 1, 1, rules.HeadEnded, rules.HeadRequeued},
		{"a retry behind an abandoned one", []func(*rules.Row){gone, retry}, 1, 2, 1, 0, 1, 2, rules.HeadEnded, rules.HeadRequeued},
		{"abandoned, behind a retry", []func(*rules.Row){retry, gone}, 1, 1, 1, 0, 1, 2, rules.HeadNone, rules.HeadNone},
		{"a timer", []func(*rules.Row){timer}, 0, 0, 0, 0, 0, 1, rules.HeadNone, rules.HeadNone},
	} {
		var k rules.KeyHeads
		var about *rules.Row
		for i, fn := range tc.key {
			r := row(fn)
			if r.Seq, r.Keyed = int64(i+1), true; r.Seq == tc.about {
				about = r
			}
			k.Add(r)
		}
		u := rules.Partition{Owner: tc.owner}
		if head, blocking, next, ahead := k.Head(false), k.Head(true), k.Next(), k.Ahead(9, true); head != tc.head || blocking != tc.blocking ||
			next != tc.next || ahead != tc.ahead {
			t.Errorf("%s: got heads %d and %d, next %d, ahead %d", tc.name, head, blocking, next, ahead)
		}
		if a, b := k.Decide(about, u, skip), k.Decide(about, u, requeue); a != tc.skipped || b != tc.requeuedChange {
			t.Errorf("%s: decisions: got %v and %v, want %v and %v", tc.name, a, b, tc.skipped, tc.requeuedChange)
		}
	}
	if k := (rules.KeyHeads{Ready: 9}); k.Ahead(9, true) != 0 || k.Ahead(8, true) != 0 {
		t.Error("a record waits for itself or for a later one")
	}
}

func TestDecided(t *testing.T) {
	t.Parallel()
	ended := func(reason waybill.Reason) *rules.Row {
		return row(func(r *rules.Row) { r.State, r.Reason = core.StateAbandoned, reason })
	}
	owned := rules.Partition{Owner: 1}
	for _, tc := range []struct {
		name   string
		r      *rules.Row
		u      rules.Partition
		number int64
		told   bool
		want   admin.DecisionResult
	}{
		{"gone", nil, owned, 0, false, admin.DecisionSuperseded},
		{"ended so", ended(waybill.ReasonSkipped), owned, 7, false, admin.DecisionCarriedOut},
		{"ended otherwise", ended(waybill.ReasonRejected), owned, 7, false, admin.DecisionSuperseded},
		{"can be out", row(nil), owned, 0, false, admin.DecisionPending},
		{"its owner is told", row(nil), owned, 7, true, admin.DecisionPending},
		{"the notice is gone", row(nil), owned, 7, false, admin.DecisionSuperseded},
		{"its owner is gone", row(nil), rules.Partition{}, 7, true, admin.DecisionCarriedOut},
	} {
		if got, _ := rules.Decided(tc.r, tc.u, &admin.Decision{Number: tc.number}, tc.told, waybill.ReasonSkipped); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}
