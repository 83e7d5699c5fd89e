package memory_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

func (k *kit) clean() core.Cleaned {
	k.Helper()
	done, err := k.Clean(k.Context(), "cleaner", time.Second)
	k.no(err)
	return done
}

func expires(r core.StagedRow, at time.Time) core.StagedRow {
	r.Envelope.Expires = at
	return r
}

func TestCleanSweeps(t *testing.T) { // ST-11
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	at := k.now.Add(time.Minute)
	k.put(
		expires(row("due", "a"), at), expires(row("held", "b"), at), expires(row("retry", "c"), at), expires(row("locked", "d"), at),
		expires(later(row("timer", "e"), time.Hour), at), expires(row("lasts", "f"), at.Add(1)), row("never", "g"),
	)
	k.hold(1, k.get(1, "held"))
	k.retry("retry", time.Hour)
	k.retry("locked", time.Hour)
	tx := k.Begin()
	k.no(tx.Lock(route, "locked"))
	k.fact("nothing has expired", k.clean().Expired == 0)
	k.now = at
	k.fact("a retry and a timer", k.clean().Expired == 2)
	k.same("its owner is told of the retry", k.told(1), []string{"key c"})
	for _, id := range []string{"retry", "timer"} {
		st := k.inspect(id)
		k.fact(id, st.State == core.StateAbandoned && st.Reason == waybill.ReasonExpired)
	}
	tx.Rollback()
	k.fact("what was locked", k.clean().Expired == 1)
	_, err := k.ReleasePartition(t.Context(), 1, core.PartitionState{Partition: partition, Term: 2, ReadAfter: 0}, []core.Ref{k.get(1, "held").Ref})
	k.no(err)
	k.fact("what is due and has no owner", k.clean().Expired == 1 && k.inspect("due").Reason == waybill.ReasonExpired)
	k.same("the rest", ids(k.read(1)), []string{"held", "lasts", "never"})
}

func TestCleanHeedsRetention(t *testing.T) { // DB-09
	t.Parallel()
	k := newKit(t, memory.Options{Retention: waybill.Retention{
		Published: time.Second, Abandoned: 2 * time.Second,
		Cancelled: 3 * time.Second,
	}})
	k.join(1, partition)
	k.put(row("published", ""), row("abandoned", "x"), row("skipped", "y"), cancellable(row("cancelled", "z")))
	k.no(k.settle(1, core.Published(k.get(1, "published")))[0])
	k.abandon("abandoned", waybill.ReasonRejected)
	k.retry("skipped", time.Hour)
	k.no(k.DecideHead(t.Context(), route, "y", "skipped", admin.HeadSkip))
	k.fact("cancelled", k.cancel("cancelled") == waybill.CancelDone && k.inspect("cancelled").Reason == waybill.ReasonCancelled)
	k.fact("cancelled once", k.cancel("cancelled") == waybill.CancelNotFound)
	k.fact("a duplicate of what was published", k.stage(msg("published"))[0].Duplicate)
	for _, c := range k.look(1, core.ReadRequest{Slots: []core.RouteSlots{all}}).Notices {
		k.no(k.settle(1, core.DeleteNotice(&c))[0])
	}
	for i, want := range []map[core.CleanedKind]int{
		{},
		{{State: core.StatePublished}: 1},
		{{State: core.StateAbandoned, Reason: waybill.ReasonRejected}: 1, {State: core.StateAbandoned, Reason: waybill.ReasonSkipped}: 1},
		{{State: core.StateAbandoned, Reason: waybill.ReasonCancelled}: 1},
	} {
		got := k.clean().Deleted
		for kind, n := range want {
			k.fact("deleted", got[kind] == n)
		}
		k.fact("nothing else", len(got) == len(want))
		if i == 2 {
			k.same("the owner of the key that was blocked is told", k.told(1), []string{"key x"})
		}
		k.now = k.now.Add(time.Second)
	}
	k.fact("empty", len(k.Records()) == 0)
}

func TestCleanElectsOne(t *testing.T) { // DB-09
	t.Parallel()
	k := newKit(t, memory.Options{})
	elected := func(owner string) bool {
		done, err := k.Clean(t.Context(), owner, time.Second)
		k.no(err)
		return done.Leader
	}
	k.fact("one", elected("a") && !elected("b"))
	k.fact("again", elected("a"))
	k.now = k.now.Add(time.Second)
	k.fact("the other", elected("b") && !elected("a"))
	_, err := k.Clean(t.Context(), "", 0)
	k.is("bad input", err, waybill.ErrInvalid)
}
