package memory_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

func TestSettleTwice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		of   func(r *core.Record) core.Outcome
		then error
		want *memory.State
	}{
		"published": {core.Published, nil, nil},
		"retry": {
			func(r *core.Record) core.Outcome { return core.Retry(r, errNo, time.Second) }, core.ErrChanged,
			&memory.State{State: core.StateFailed, Attempts: 1, Version: 2, Waits: true, DueIn: time.Second, LastError: "no"},
		},
		"abandon": {
			func(r *core.Record) core.Outcome { return core.Abandon(r, waybill.ReasonForbidden, errNo) }, core.ErrChanged,
			&memory.State{State: core.StateAbandoned, Reason: waybill.ReasonForbidden, Attempts: 1, Version: 2, LastError: "no"},
		},
		"expired": {
			func(r *core.Record) core.Outcome { return core.Abandon(r, waybill.ReasonExpired, nil) }, core.ErrChanged,
			&memory.State{State: core.StateAbandoned, Reason: waybill.ReasonExpired, Version: 2},
		},
		"release": {
			func(r *core.Record) core.Outcome { return core.Release(r, time.Second, true) }, core.ErrChanged,
			&memory.State{State: core.StatePending, Version: 2, Maybe: true},
		},
		"cancel": {
			func(r *core.Record) core.Outcome { return core.Cancel(r, waybill.ReasonSkipped) }, core.ErrChanged,
			&memory.State{State: core.StateAbandoned, Reason: waybill.ReasonSkipped, Version: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKit(t, memory.Options{})
			k.join(1, partition)
			k.put(row("a", "x"))
			r := k.get(1, "a")
			k.hold(1, r)
			o := tc.of(r)
			k.no(k.settle(1, o)[0])
			before := k.state("a")
			k.is("again", k.settle(1, o)[0], tc.then)
			after := k.state("a")
			if tc.want == nil {
				k.fact("it is gone", after == nil)
				return
			}
			k.fact("applied once", *before == *after)
			tc.want.Route, tc.want.ID, tc.want.Key, tc.want.Seq, tc.want.TxID, tc.want.Slot = route, "a", "x", 1, 1, r.Slot
			if *after != *tc.want {
				t.Errorf("%+v, want %+v", *after, *tc.want)
			}
		})
	}
}

func TestSettleLocked(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{Retention: waybill.Retention{Published: waybill.Forever}})
	k.join(1, partition)
	k.put(row("a", ""), row("b", ""), row("c", ""))
	tx := k.Begin()
	k.no(tx.Lock(route, "b"))
	recs := k.read(1)
	k.same("what is locked is read", ids(recs), []string{"a", "b", "c"})
	res := k.settle(1, core.Published(&recs[0]), core.Published(&recs[1]), core.Retry(&recs[2], errNo, 0))
	k.fact("one is busy, alone", res[0] == nil && res[2] == nil)
	k.is("one is busy", res[1], core.ErrLocked)
	k.no(tx.Commit())
	k.no(k.settle(1, core.Published(&recs[1]))[0])
	k.fact("kept", k.state("b").State == core.StatePublished && k.state("b").Settled())
	k.no(k.settle(1, core.Published(&recs[1]))[0])
	k.fact("once", k.state("b").Version == recs[1].Version+1)
}

func TestSettleStale(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.join(2)
	k.put(row("a", "x"))
	r := k.get(1, "a")
	k.no(k.settle(1, core.Retry(r, errNo, 0))[0])
	tx := k.Begin()
	k.no(tx.Redrive(route, "a"))
	k.no(tx.Commit())
	before := *k.state("a")
	k.fact("redriven", before.Version == 3 && before.Attempts == 0 && before.State == core.StatePending && !before.Waits)
	k.is("a stale retry", k.settle(1, core.Retry(r, errNo, 0))[0], core.ErrChanged)
	k.is("a stale release", k.settle(1, core.Release(r, 0, true))[0], core.ErrChanged)
	k.fact("nothing changed", before == *k.state("a"))
	k.is("a stale one of another's partition is changed", k.settle(2, core.Retry(r, errNo, 0))[0], core.ErrChanged)
	k.is("a good one of another's partition is fenced", k.settle(2, core.Retry(k.get(1, "a"), errNo, 0))[0], core.ErrFenced)
	k.is("who is not there is fenced", k.settle(7, core.Retry(r, errNo, 0))[0], core.ErrFenced)
	k.is("the zero outcome", k.settle(1, core.Outcome{})[0], waybill.ErrInvalid)
	k.no(k.settle(1, core.Published(r))[0])
	k.fact("published needs no version", k.state("a") == nil)
}

func TestSettleHeeded(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.join(2)
	k.put(row("a", "x"), row("b", ""))
	for _, r := range k.read(1) {
		k.no(k.settle(1, core.Abandon(&r, waybill.ReasonRejected, errNo))[0])
	}
	tx := k.Begin()
	k.no(tx.Redrive(route, "a"))
	k.no(tx.Redrive(route, "b"))
	request := core.ReadRequest{Slots: []core.RouteSlots{all}}
	k.fact("not before the commit", len(k.look(1, request).Notices) == 0)
	k.no(tx.Commit())
	c := k.look(1, request).Notices
	k.fact("two", len(c) == 2 && c[0].Kind == core.NoticeKey && c[0].Key == "x")
	k.fact("of a record", c[1].Kind == core.NoticeRecord && c[1].Seq == 2 && c[1].ID == "b")
	k.fact("only of the parts", len(k.look(1, core.ReadRequest{Slots: []core.RouteSlots{{Route: route, Slots: 1 << c[0].Slot}}}).Notices) == 1)
	o := core.DeleteNotice(&c[0])
	k.no(k.settle(2, o)[0])
	k.no(k.settle(2, o)[0])
	k.fact("one is left", len(k.look(1, request).Notices) == 1)
	k.is("without a session", k.settle(9, o)[0], core.ErrFenced)
}
