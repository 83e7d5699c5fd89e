package admin_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// line has the records 1 to n. Its owner carries out so many decisions each time that it is asked about one.
type line struct {
	admin.Purger
	n     int
	pace  int
	fail  int // the call about decisions with this number fails
	calls int
	most  int             // of decisions pending at once
	told  map[int64]bool  // pending
	order []int64         // in which they were told
	ended map[int64]int64 // how often each was decided about anew
}

func (l *line) Inspect(context.Context, string, string) (admin.Stored, error) {
	return admin.Stored{}, waybill.ErrNotFound
}

func (l *line) List(_ context.Context, _ admin.Filter, p admin.PageRequest) (out admin.Listing, err error) {
	for seq := p.After + 1; seq <= int64(l.n); seq++ {
		if len(out.Records) == p.Limit {
			out.Next = seq - 1
			break
		}
		st := admin.Stored{Route: "r", Seq: seq}
		st.Envelope.ID = strconv.FormatInt(seq, 10)
		out.Records = append(out.Records, st)
	}
	return out, nil
}

// DecideRecords ends every tenth at once, finds every hundredth published, and tells the owner of the others.
func (l *line) DecideRecords(_ context.Context, req admin.DecideRequest) ([]admin.Decision, error) {
	out, err := admin.CheckDecideRecords(req)
	if err != nil {
		return nil, err
	}
	if l.calls++; l.calls == l.fail {
		return nil, errors.New("the database is away")
	}
	for range min(l.pace, len(l.order)) {
		delete(l.told, l.order[0])
		l.order = l.order[1:]
	}
	for i := range out {
		d := &out[i]
		if d.Number == 0 {
			l.ended[d.Seq]++
		}
		switch {
		case d.Seq%100 == 0:
			d.Result = admin.DecisionSuperseded
		case d.Seq%10 == 0:
			d.Result = admin.DecisionCarriedOut
		case d.Number == 0:
			d.Result, d.Number, l.told[d.Seq] = admin.DecisionPending, d.Seq, true
			l.order = append(l.order, d.Seq)
		case l.told[d.Seq]:
			d.Result = admin.DecisionPending
		default:
			d.Result = admin.DecisionCarriedOut
		}
	}
	l.most = max(l.most, len(l.told))
	return out, nil
}

func newLine(n, pace int) *line {
	return &line{n: n, pace: pace, told: map[int64]bool{}, ended: map[int64]int64{}}
}

var all = admin.TerminateRequest{All: true, Reason: waybill.ReasonSkipped}

// Everything is decided about once, a bounded number is pending at any time, and each result is told once.
func TestDecideAll(t *testing.T) { // OP-18
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		l := newLine(30_000, 700)
		results := map[admin.DecisionResult]int{}
		var last admin.TerminateResult
		sum, err := admin.DecideAll(t.Context(), l, all, admin.TerminateOptions{
			Result:   func(d admin.Decision) { results[d.Result]++ },
			Progress: func(sum admin.TerminateResult) { last = sum },
		})
		want := admin.TerminateResult{Matched: 30_000, Ended: 29_700, Otherwise: 300}
		if err != nil || sum != want || last != want {
			t.Fatalf("%+v, %v; the last progress was %+v", sum, err, last)
		}
		if results[admin.DecisionCarriedOut] != 29_700 || results[admin.DecisionSuperseded] != 300 || len(results) != 2 {
			t.Errorf("told: %v", results)
		}
		for seq, n := range l.ended {
			if n != 1 || len(l.ended) != 30_000 {
				t.Fatalf("record %d of %d was decided about %d times", seq, len(l.ended), n)
			}
		}
		if l.most > admin.MaxPending {
			t.Errorf("%d were pending at once", l.most)
		}
	})
}

// Owners that do nothing are waited for as long as stated. The error says that the decisions stand, and which.
func TestDecideAllGivesUp(t *testing.T) { // OP-18
	t.Parallel()
	for wait, want := range map[time.Duration]time.Duration{0: admin.DefaultDecideWait, time.Second: time.Second, -1: 0} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(want+time.Second, "the owners do nothing for as long as they are waited for")
			l := newLine(20, 0)
			results := map[admin.DecisionResult]int{}
			began := time.Now()
			sum, err := admin.DecideAll(t.Context(), l, all, admin.TerminateOptions{Wait: wait, Result: func(d admin.Decision) { results[d.Result]++ }})
			if !errors.Is(err, waybill.ErrInFlight) || !strings.Contains(err.Error(), `18 decisions`) || !strings.Contains(err.Error(), `"1"`) {
				t.Errorf("%v", err)
			}
			if sum != (admin.TerminateResult{Matched: 20, Ended: 2, Pending: 18}) || results[admin.DecisionPending] != 18 {
				t.Errorf("%+v, told: %v", sum, results)
			}
			if took := time.Since(began); took < want || took > want+time.Second {
				t.Errorf("it took %s, want %s", took, want)
			}
		})
	}
}

// Decisions that were pending when the context ended, or a step failed, are counted; and the sum says where to go on.
func TestDecideAllGoesOn(t *testing.T) { // OP-18
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		l := newLine(2500, 1000)
		l.fail = 3
		req := all
		req.Page.Limit = 1000
		first, err := admin.DecideAll(t.Context(), l, req, admin.TerminateOptions{})
		if err == nil || first.Next != 2000 || first.Matched != 2000 {
			t.Fatalf("%+v, %v", first, err)
		}
		req.Page.After = first.Next
		rest, err := admin.DecideAll(t.Context(), l, req, admin.TerminateOptions{})
		if err != nil || rest.Matched != 500 || rest.Next != 0 {
			t.Fatalf("%+v, %v", rest, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := admin.DecideAll(ctx, newLine(20, 0), all, admin.TerminateOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("after the context ended: %v", err)
		}
	})
}

// Bad input is refused, with everything that is wrong, before anything is done.
func TestDecideAllRefuses(t *testing.T) { // OP-18
	t.Parallel()
	l := newLine(10, 0)
	_, err := admin.DecideAll(t.Context(), l, admin.TerminateRequest{Page: admin.PageRequest{Limit: -1}}, admin.TerminateOptions{})
	for _, word := range []string{"Filter:", "Reason:", "Page.Limit:"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not name %s", err, word)
		}
	}
	for _, f := range []admin.Filter{{Reasons: []waybill.Reason{waybill.ReasonRejected}}, {States: []core.State{core.StateAbandoned}}} {
		req := all
		req.Filter = f
		if _, err := admin.DecideAll(t.Context(), l, req, admin.TerminateOptions{}); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
		if _, err := admin.PurgeAll(t.Context(), l, admin.PurgeRequest{Filter: f}, admin.TerminateOptions{}); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("purge %+v: %v", f, err)
		}
	}
	if l.calls > 0 {
		t.Errorf("%d calls", l.calls)
	}
}
