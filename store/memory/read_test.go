package memory_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

func TestReadRange(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", "x"), row("b", ""), row("c", "y"), later(row("d", "x"), time.Minute), row("e", "x"))
	read := func(change func(*core.Range), size int64) core.Records {
		rg := everything
		change(&rg)
		return k.look(1, core.ReadRequest{Ranges: []core.Range{rg}, Bytes: size}).Ranges[0]
	}
	k.same("all", ids(read(func(*core.Range) {}, 0).Records), []string{"a", "b", "c", "e"})
	k.same("from, to", ids(read(func(r *core.Range) { r.AfterSeq, r.UpToSeq = 1, 3 }, 0).Records), []string{"b", "c"})
	k.same("left out", ids(read(func(r *core.Range) { r.ExcludeKeys, r.ExcludeSeqs = []string{"x"}, []int64{2} }, 0).Records), []string{"c"})
	k.same("keyed", ids(read(func(r *core.Range) { r.KeyedOnly = true }, 0).Records), []string{"a", "c", "e"})
	k.same("slot", ids(read(func(r *core.Range) { r.Slots = 1 << core.SlotOf(route, "x", "") }, 0).Records), []string{"a", "e"})
	two := read(func(r *core.Range) { r.Limit = 2 }, 0)
	k.same("limit", ids(two.Records), []string{"a", "b"})
	k.fact("more", two.More)
	k.fact("no more", !read(func(r *core.Range) { r.Limit = 4 }, 0).More)
	k.same("bytes", ids(read(func(*core.Range) {}, 9).Records), []string{"a", "b"})
	k.same("at least one", ids(read(func(*core.Range) {}, 1).Records), []string{"a"})
}

func TestReadIsOneSnapshot(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	tx := k.Begin()
	if _, err := tx.Stage(row("a", "x"), row("b", "x")); err != nil {
		t.Fatal(err)
	}
	k.fact("nothing is seen before the commit", len(k.read(1)) == 0)
	k.put(row("c", ""))
	p := k.look(1, core.ReadRequest{})
	k.fact("transaction ids", p.LastSeq == 3 && p.SnapshotXmax == 3 && p.LastSeqXmax == 3 && len(p.RunningTxs) == 1 && p.RunningTxs[0] == tx.ID())
	k.fact("at rest there is no upper bound", k.look(1, core.ReadRequest{KnownLastSeq: 3}).LastSeqXmax == 0)
	k.no(tx.Commit())
	p = k.look(1, core.ReadRequest{KnownLastSeq: 3, Ranges: []core.Range{
		{RouteSlots: all, UpToSeq: 1},
		{RouteSlots: all, AfterSeq: 1, UpToSeq: 9},
	}, Keys: []core.KeyRange{{Route: route, Key: "x", UpToSeq: 9}}})
	k.same("range 0", ids(p.Ranges[0].Records), []string{"a"})
	k.same("range 1", ids(p.Ranges[1].Records), []string{"b", "c"})
	k.same("key", ids(p.Keys[0].Records), []string{"a", "b"})
	k.fact("nobody runs", len(p.RunningTxs) == 0)
}

func TestReadWaiting(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", "x"), row("b", "x"), row("c", "y"), row("d", ""), row("e", ""), row("f", "z"))
	out := map[string]*core.Record{}
	for _, r := range k.read(1) {
		out[r.ID] = &r
	}
	k.no(k.settle(1,
		core.Retry(out["a"], errNo, time.Minute), core.Abandon(out["c"], waybill.ReasonRejected, errNo), core.Retry(out["e"], errNo, 0),
	).FirstErr())
	ok, err := k.ReleasePartition(t.Context(), 1, core.PartitionState{Partition: partition, Term: 2, ReadAfter: 0}, []core.Ref{out["b"].Ref, out["d"].Ref})
	k.fact("given up", ok && err == nil)
	k.join(2, partition)
	why := func(list []core.BlockingRecord) (s []string) {
		for _, w := range list {
			s = append(s, w.ID+string(rune('0'+w.Why)))
		}
		return s
	}
	request := core.ReadRequest{
		Slots: []core.RouteSlots{all}, NewlyOwned: []core.RouteSlots{all}, BlockingRoutes: []string{route}, BlockingLimit: 9,
		Keys: []core.KeyRange{{Route: route, Key: "x", UpToSeq: 9}},
	}
	p := k.look(2, request)
	k.fact("owned", p.Owned[0] == core.AllSlots)
	k.same("fresh", why(p.Blocking), []string{"a1", "b3", "c2", "d3"})
	k.same("key's records", ids(p.Keys[0].Records), []string{"b"})
	k.same("key's block reasons", why(p.Keys[0].Blocking), []string{"a1", "b3"})
	k.fact("holder", p.Blocking[1].HeldBy == 1 && p.Keys[0].Records[0].HeldBy == 1)
	request.BlockingLimit, request.BlockingRoutes = 1, nil
	p = k.look(2, request)
	k.fact("a limit", len(p.Blocking) == 1 && p.MoreBlocking)
	request.BlockingLimit, request.NewlyOwnedAfter = 9, p.Blocking[0].Seq
	p = k.look(2, request)
	k.same("the rest, of a route that does not block", why(p.Blocking), []string{"b3", "d3"})

	again := core.ReadRequest{BlockingRoutes: []string{route}, Recheck: []core.Ref{
		out["a"].Ref, out["b"].Ref, out["c"].Ref, out["f"].Ref, {Route: route, Seq: 2, ID: "a"},
	}}
	p = k.look(2, again)
	k.same("again", ids(p.Rechecked), []string{"b", "f"})
	k.same("again waits", why(p.RecheckedBlocking), []string{"a1", "c2"})
}

func TestRecord(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	r := row("a", "x")
	r.Envelope.Expires = k.now.Add(time.Minute)
	r.DedupeKey = "d"
	k.put(r)
	r.Envelope.Body[0] = 'X'
	k.now = k.now.Add(90 * time.Second)
	k.no(k.Corrupt(1))
	got := k.get(1, "a")
	k.fact("age and life", got.DueFor == 90*time.Second && got.Expires && got.ExpiresIn == -30*time.Second)
	k.fact("a dedupe key makes it cancellable", got.Cancellable)
	k.fact("unreadable", got.Err != nil)
	k.fact("copied", string(got.Envelope.Body) == "body")
	got.Envelope.Body[0] = 'X'
	k.fact("copied again", string(k.get(1, "a").Envelope.Body) == "body")
	k.fact("slot", got.Slot == core.SlotOf(route, "x", "a"))
}
