package memory_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

func TestDueRetries(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", "x"), row("b", "y"), row("c", ""))
	k.fact("nothing waits", k.due(1, 9).NextIn < 0)
	for i, r := range k.read(1) {
		k.no(k.settle(1, core.Retry(&r, errNo, time.Duration(3-i)*time.Second))[0])
	}
	p := k.due(1, 9)
	k.fact("next is exact", len(p.Retries) == 0 && p.NextIn == time.Second)
	k.now = k.now.Add(2500 * time.Millisecond)
	p = k.due(1, 9)
	k.same("in order of time", ids(p.Retries), []string{"c", "b"})
	k.fact("held", p.Retries[0].HeldBy == 1 && p.Retries[0].Failed && p.Retries[0].Attempts == 1 &&
		p.Retries[0].DueFor == 2500*time.Millisecond)
	k.fact("next is exact", p.NextIn == 500*time.Millisecond)
	k.now = k.now.Add(time.Second)
	p = k.due(1, 2)
	k.same("first what self holds", ids(p.Retries), []string{"c", "b"})
	k.fact("there is more", p.NextIn == 0)
	k.same("all", ids(k.due(1, 9).Retries), []string{"c", "b", "a"})
	k.same("again", ids(k.due(1, 9).Retries), []string{"c", "b", "a"})
	k.fact("nothing more", k.due(1, 9).NextIn < 0)

	r := &p.Retries[0]
	k.no(k.settle(1, core.Release(r, time.Minute, true))[0])
	k.is("a repeated release", k.settle(1, core.Release(r, time.Hour, false))[0], core.ErrChanged)
	p = k.due(1, 9)
	k.fact("released: it waits on", len(p.Retries) == 2 && p.NextIn == time.Minute)
	k.fact("and costs nothing", k.state("c").Attempts == 1 && k.state("c").Maybe && k.state("c").Version == r.Version+1)
}

func TestDueLocked(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", "x"), later(row("b", "y"), 0), later(row("c", "y"), time.Second))
	k.no(k.settle(1, core.Retry(k.get(1, "a"), errNo, 0))[0])
	k.now = k.now.Add(time.Second)
	tx := k.Begin()
	k.no(tx.Lock(route, "a"))
	k.no(tx.Lock(route, "c"))
	p := k.due(1, 9)
	k.fact("locked ones are left for later", len(p.Retries) == 0 && p.TimersReady == 0 && p.NextIn == 0)
	tx.Rollback()
	p = k.due(1, 9)
	k.fact("and are there then", len(p.Retries) == 1 && p.TimersReady == 1)
}

func TestDueTimers(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	at := row("c", "x")
	at.DeliverAt = k.now.Add(time.Second)
	k.put(later(row("a", "x"), 3*time.Second), later(row("b", "x"), 2*time.Second), at, row("d", "x"))
	k.now = k.now.Add(3 * time.Second)
	_, err := k.Due(t.Context(), 1, []core.RouteSlots{{Route: "other", Slots: 1}}, 9)
	k.no(err)
	p := k.due(1, 2)
	k.fact("two, and more", p.TimersReady == 2 && p.NextIn == 0)
	p = k.due(1, 2)
	k.fact("one, and none", p.TimersReady == 1 && p.NextIn < 0)
	k.same("new numbers by due time", ids(k.read(1)), []string{"d", "c", "b", "a"})
	k.fact("greater than any before", k.get(1, "c").Seq == 5 && k.look(1, core.ReadRequest{}).LastSeq == 7)
	k.fact("age since due", k.get(1, "c").DueFor == 2*time.Second && k.get(1, "c").Version == 2)
}

func TestDueOfAnother(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	two := core.SplitPartitions(route, 2)
	k.heartbeat(core.HeartbeatRequest{Self: member(1, 1, 2), Join: true, Transfers: []core.Transfer{{Partition: two[0], To: 1}}})
	mine := 0
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		k.put(later(row(id, ""), time.Second))
		if two[0].Slots().Has(core.SlotOf(route, "", id)) {
			mine++
		}
	}
	k.fact("some are in each half", mine > 0 && mine < 6)
	k.now = k.now.Add(time.Second)
	p := k.due(1, 9)
	k.fact("moved are those in the slots that self owns", p.TimersReady == mine)
	k.fact("nothing else is due", p.NextIn < 0)
}
