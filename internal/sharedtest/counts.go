package sharedtest

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// Counted is what a count must say of the records of a route.
type Counted struct {
	Route  string
	State  core.State
	Reason waybill.Reason
	N, Due int64  // as many as there are; 0 or all are due
	How    string // "exact", "estimated" (within 5 %), or "at least" (fewer)
}

// Counts fails the test unless the counts of c are all wanted.
func Counts(tb testing.TB, c admin.Counter, want ...Counted) {
	tb.Helper()
	counts, err := c.Counts(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	type kind struct {
		route  string
		state  core.State
		reason waybill.Reason
	}
	got := map[kind]admin.Count{}
	for _, n := range counts {
		got[kind{n.Route, n.State, n.Reason}] = n
	}
	for _, w := range want {
		k := kind{w.Route, w.State, w.Reason}
		n, ok := got[k]
		delete(got, k)
		how := "exact"
		switch {
		case !ok:
			how = "missing"
		case n.AtLeast:
			how = "at least"
		case n.Estimated:
			how = "estimated"
		}
		off := max(n.N-w.N, w.N-n.N)
		if how != w.How || how == "exact" && off > 0 || off*20 > w.N && how == "estimated" || how == "at least" && n.N >= w.N ||
			w.Due == w.N && n.Due != n.N || w.Due == 0 && n.Due != 0 {
			tb.Errorf("%s %s %s: %d (%s), %d are due; there are %d, want it %s", w.Route, w.State, w.Reason, n.N, how, n.Due, w.N, w.How)
		}
	}
	for _, n := range got {
		tb.Errorf("%s %s %s: %d, want none", n.Route, n.State, n.Reason, n.N)
	}
}
