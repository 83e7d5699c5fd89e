package memory_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

func TestTakeIsDisjointAndComplete(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	for i := range 16 {
		k.join(core.Session(i + 1))
	}
	k.fill(100)
	k.fill(10, "x")
	var mu sync.Mutex
	got := map[string]core.Session{}
	var wg sync.WaitGroup
	for i := range 16 {
		self := core.Session(i + 1)
		wg.Go(func() {
			var out []core.Ref
			for {
				taken, err := k.Hold(t.Context(), self, core.HoldRequest{KeylessSlots: all, KeylessLimit: 3, ExcludeRefs: out, CountDelivery: true})
				if err != nil || len(taken) == 0 {
					return
				}
				last := int64(0)
				for _, x := range taken {
					out = append(out, x.Ref)
					mu.Lock()
					if got[x.Ref.ID] != 0 || x.Record.Envelope.Key != "" || x.Deliveries != 1 || x.Record.HeldBy != self ||
						x.Ref.Seq < last {
						t.Errorf("%+v", x)
					}
					got[x.Ref.ID] = self
					mu.Unlock()
					last = x.Ref.Seq
				}
			}
		})
	}
	wg.Wait()
	k.fact("complete", len(got) == 100)
}

func TestTakeAgain(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.join(2)
	k.fill(5)
	want := core.HoldRequest{KeylessSlots: all, KeylessLimit: 2, CountDelivery: true}
	first, second := k.take(1, want), k.take(1, want)
	k.fact("a lost answer is answered again", len(second) == 2 && first[0].Ref == second[0].Ref && second[1].Deliveries == 1)
	want.ExcludeRefs = []core.Ref{first[0].Ref}
	third := k.take(1, want)
	k.fact("first what is not out", len(third) == 2 && third[0].Ref == first[1].Ref && third[1].Ref.Seq == 3)

	tx := k.Begin()
	k.no(tx.Lock(route, "m4"))
	m4, m5 := k.get(1, "m4").Ref, k.get(1, "m5").Ref
	stale := m5
	stale.Version++
	refs := []core.Ref{m4, stale, first[0].Ref, m5}
	holdStatuses := func(self core.Session) (g []core.HoldStatus) {
		for _, x := range k.take(self, core.HoldRequest{Refs: refs}) {
			g = append(g, x.Status)
		}
		return g
	}
	k.fact("locked, gone, held, held", slices.Equal(holdStatuses(1), []core.HoldStatus{core.HoldSkipped, core.HoldGone, core.HoldGranted, core.HoldGranted}))
	k.fact("the same again", slices.Equal(holdStatuses(1), []core.HoldStatus{core.HoldSkipped, core.HoldGone, core.HoldGranted, core.HoldGranted}))
	k.fact("nothing of another's partition", slices.Equal(holdStatuses(2), []core.HoldStatus{core.HoldGone, core.HoldGone, core.HoldGone, core.HoldGone}))
	k.fact("locked ones are passed over", len(k.take(2, core.HoldRequest{KeylessSlots: all, KeylessLimit: 9})) == 0)
	tx.Rollback()
	got := k.take(2, core.HoldRequest{KeylessSlots: all, KeylessLimit: 9})
	k.fact("and are there again", len(got) == 1 && got[0].Ref.ID == "m4")
	k.fact("who holds can settle", k.settle(2, core.Published(got[0].Record))[0] == nil)
	k.fact("another's hold is locked", k.take(1, core.HoldRequest{Refs: []core.Ref{k.get(1, "m5").Ref}})[0].Status == core.HoldGranted)
}

func TestTakeBytes(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1)
	k.fill(5)
	k.fact("bodies of 4 bytes", len(k.take(1, core.HoldRequest{KeylessSlots: all, KeylessLimit: 5, Bytes: 9})) == 2)
	k.fact("at least one", len(k.take(1, core.HoldRequest{KeylessSlots: all, KeylessLimit: 5, Bytes: 1})) == 1)
}

func TestTakeHeldByAnother(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.join(2)
	k.fill(1)
	k.fact("taken", len(k.take(2, core.HoldRequest{KeylessSlots: all, KeylessLimit: 1})) == 1)
	r := k.get(1, "m1")
	k.fact("held", r.HeldBy == 2 && k.take(1, core.HoldRequest{Refs: []core.Ref{r.Ref}})[0].Status == core.HoldSkipped)
	k.bury(1, 2)
	k.fact("another version after the crash", k.take(1, core.HoldRequest{Refs: []core.Ref{r.Ref}})[0].Status == core.HoldGone)
	k.fact("free", k.take(1, core.HoldRequest{Refs: []core.Ref{k.get(1, "m1").Ref}})[0].Status == core.HoldGranted)
}

func TestGiveUp(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.join(2)
	k.put(row("a", "x"), row("b", "x"), row("c", ""), row("d", ""), row("e", "y"))
	k.hold(1, k.get(1, "b"), k.get(1, "e"))
	a, b, c, d := k.get(1, "a").Ref, k.get(1, "b").Ref, k.get(1, "c").Ref, k.get(1, "d").Ref
	stale := d
	stale.Version++
	give := func(self core.Session) (bool, error) {
		return k.ReleasePartition(t.Context(), self, core.PartitionState{Partition: partition, Term: 2, ReadAfter: 42}, []core.Ref{a, b, c, stale})
	}
	holders := func() string {
		var s []byte
		for _, st := range k.States() {
			s = append(s, byte('0'+st.Holder))
		}
		return string(s)
	}
	_, err := give(2)
	k.is("another's", err, core.ErrFenced)
	tx := k.Begin()
	k.no(tx.Lock(route, "c"))
	ok, err := give(1)
	k.fact("one of out is locked: not yet, and nothing changed", !ok && err == nil && holders() == "01001")
	k.no(tx.RollbackTo(0))
	k.no(tx.Lock(route, "e"))
	ok, err = give(1)
	k.fact("a hold to end is locked: not yet", !ok && err == nil && holders() == "01001")
	tx.Rollback()
	ok, err = give(1)
	k.fact("given up", ok && err == nil)
	k.fact("holds for exactly what is out: "+holders(), holders() == "11100")
	k.fact("free", owner(k.heartbeat(core.HeartbeatRequest{}), partition) == core.PartitionState{Partition: partition, Term: 3, ReadAfter: 42})
	k.heartbeat(core.HeartbeatRequest{Self: member(2, 5, 1), Transfers: []core.Transfer{{Partition: partition, To: 2}}})
	ok, err = give(1)
	k.fact("again: the same", ok && err == nil && owner(k.heartbeat(core.HeartbeatRequest{}), partition).Owner == 2)
	k.no(func() error {
		_, err := k.ReleasePartition(t.Context(), 2, core.PartitionState{Partition: partition, Term: 4}, nil)
		return err
	}())
	k.heartbeat(core.HeartbeatRequest{Self: member(1, 6, 1), Transfers: []core.Transfer{{Partition: partition, To: 1}}})
	ok, err = give(1)
	k.fact("late, after self has taken it again: nothing changes", ok && err == nil && owner(k.heartbeat(core.HeartbeatRequest{}), partition).Owner == 1)
	k.heartbeat(core.HeartbeatRequest{Self: member(1, 7, 1), Transfers: []core.Transfer{{Partition: partition, From: 1, To: 2}}})
	ok, err = k.ReleasePartition(t.Context(), 1, core.PartitionState{Partition: core.Partition{Route: route, From: 0, To: 3}, Term: 2}, nil)
	k.fact("no such partition", !ok)
	k.is("no such partition", err, core.ErrFenced)
	rec := k.get(1, "a")
	k.fact("what is held can be settled after the partition is another's", k.settle(1, core.Retry(rec, errNo, time.Second))[0] == nil)
	k.is("what is not, cannot", k.settle(1, core.Release(k.get(1, "d"), 0, false))[0], core.ErrFenced)
	k.fact("but what was published can", k.settle(1, core.Published(k.get(1, "d")))[0] == nil)
}
