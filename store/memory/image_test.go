package memory_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

func TestRestore(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", "x"), row("b", "x"), later(row("c", ""), time.Second))
	k.hold(1, k.get(1, "a"))
	k.retry("b", time.Second)
	tx := k.Begin()
	_, err := tx.Stage(row("open", ""))
	k.no(err)
	k.no(tx.Lock(route, "a"))
	img, then := k.Snapshot(), k.States()
	before := k.heartbeat(core.HeartbeatRequest{Self: core.Member{Session: 1}})

	k.put(row("d", "x"))
	d := k.get(1, "d")
	k.fact("d has 5", d.Seq == 5)
	k.bury(1, 1)
	k.join(2, partition)
	for range 2 {
		k.Restore(img)
		for i := range then {
			then[i].Locked = false
		}
		k.fact("as it was", reflect.DeepEqual(k.States(), then))
		k.is("open transactions are gone", tx.Commit(), waybill.ErrClosed)
		after := k.heartbeat(core.HeartbeatRequest{Self: core.Member{Session: 1}})
		k.fact("another epoch", after.StoreEpoch != before.StoreEpoch)
		before.StoreEpoch = after.StoreEpoch
		k.fact("partitions and members as they were", reflect.DeepEqual(before, after))
		p := k.look(1, core.ReadRequest{})
		k.fact("nobody runs", len(p.RunningTxs) == 0 && p.LastSeq == 4 && p.SnapshotXmax == 3)

		k.put(row("e", "x"))
		k.fact("e has the number that d had", k.get(1, "e").Seq == 5)
		k.is("published", k.settle(1, core.Published(d))[0], core.ErrChanged)
		k.is("retry", k.settle(1, core.Retry(d, errNo, 0))[0], core.ErrChanged)
		k.fact("hold", k.take(1, core.HoldRequest{Refs: []core.Ref{d.Ref}})[0].Status == core.HoldGone)
		k.fact("e is untouched", k.state("e").Version == 1 && k.state("e").State == core.StatePending)
		k.fact("the hold is known", len(k.due(1, 9).Retries) == 0)
		k.no(k.settle(1, core.Published(k.get(1, "a")))[0])
	}
}

func TestSetSequence(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.SetSequence(100)
	k.fact("next", k.put(row("a", ""))[0] == 101)
	k.SetSequence(100)
	tx := k.Begin()
	_, err := tx.Stage(row("b", ""))
	k.fact("a number that is taken is refused", err != nil)
	seqs, err := tx.Stage(row("b", ""))
	k.fact("the next one is not", err == nil && seqs[0] == 102)
}

// TestDrain is quick, or reads have become slow.
func TestDrain(t *testing.T) {
	t.Parallel()
	const n = 100_000
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.fill(n/2, "a", "b", "c", "d", "e", "f", "g")
	k.fill(n / 2)
	start, got, from := time.Now(), 0, int64(0)
	for {
		p := k.look(1, core.ReadRequest{KnownLastSeq: from, Ranges: []core.Range{{RouteSlots: all, AfterSeq: from, UpToSeq: 1 << 60, Limit: 500}}})
		recs := p.Ranges[0].Records
		if len(recs) == 0 {
			break
		}
		outs := make([]core.Outcome, len(recs))
		for i := range recs {
			outs[i] = core.Published(&recs[i])
		}
		k.no(k.settle(1, outs...).FirstErr())
		got, from = got+len(recs), recs[len(recs)-1].Seq
	}
	k.fact("all", got == n && len(k.States()) == 0)
	t.Logf("%d records in %s", n, time.Since(start))
}
