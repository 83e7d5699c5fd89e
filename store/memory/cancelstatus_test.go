package memory_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// cancel cancels in a transaction of its own.
func (k *kit) cancel(id string) waybill.CancelStatus {
	k.Helper()
	tx := k.Begin()
	st, err := tx.Cancel(route, id)
	k.no(err)
	k.no(tx.Commit())
	return st
}

func TestCancel(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		row     core.StagedRow
		prepare func(k *kit)
		want    waybill.CancelStatus
		notice  int
	}{
		"none":                 {row("z", "x"), func(*kit) {}, waybill.CancelNotFound, 0},
		"scheduled":            {later(row("a", "x"), time.Hour), func(*kit) {}, waybill.CancelDone, 0},
		"due":                  {row("a", "x"), func(*kit) {}, waybill.CancelInFlight, 0},
		"cancellable":          {cancellable(row("a", "x")), func(*kit) {}, waybill.CancelDone, 1},
		"cancellable, no key":  {cancellable(row("a", "")), func(*kit) {}, waybill.CancelDone, 0},
		"cancellable and held": {cancellable(row("a", "x")), func(k *kit) { k.hold(1, k.get(1, "a")) }, waybill.CancelInFlight, 0},
		"waits for a retry":    {row("a", "x"), func(k *kit) { k.retry("a", time.Hour) }, waybill.CancelDone, 1},
		"retry that is held": {row("a", "x"), func(k *kit) {
			k.retry("a", 0)
			k.due(1, 1)
		}, waybill.CancelInFlight, 0},
		"sent without an answer": {cancellable(row("a", "x")), func(k *kit) {
			k.no(k.settle(1, core.Release(k.get(1, "a"), 0, true))[0])
		}, waybill.CancelUncertain, 1},
		"held by a dead one": {row("a", "x"), func(k *kit) {
			k.hold(1, k.get(1, "a"))
			k.bury(2, 1)
			k.heartbeat(core.HeartbeatRequest{Self: member(2, 5, 1), Transfers: []core.Transfer{{Partition: partition, To: 2}, {Partition: partition, From: 2, To: 2}}})
		}, waybill.CancelUncertain, 1},
		"a dead one had the partition": {row("a", "x"), func(k *kit) { k.bury(2, 1) }, waybill.CancelUncertain, 1},
		"retry of a dead one's partition": {row("a", "x"), func(k *kit) {
			k.retry("a", 0)
			k.bury(2, 1)
		}, waybill.CancelUncertain, 1},
		"a window has passed it": {row("a", "x"), func(k *kit) {
			k.bury(2, 1)
			k.heartbeat(core.HeartbeatRequest{Self: member(2, 5, 1), Transfers: []core.Transfer{{Partition: partition, To: 2}, {Partition: partition, From: 2, To: 2}}})
		}, waybill.CancelInFlight, 0},
		"abandoned": {row("a", "x"), func(k *kit) {
			k.no(k.settle(1, core.Abandon(k.get(1, "a"), waybill.ReasonRejected, nil))[0])
		}, waybill.CancelNotFound, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKit(t, memory.Options{})
			k.join(1, partition)
			k.join(2)
			k.put(tc.row)
			tc.prepare(k)
			got := k.cancel("a")
			if got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
			if got == waybill.CancelDone || got == waybill.CancelUncertain {
				k.fact("it is gone", k.state("a") == nil && len(k.read(2)) == 0)
			} else {
				k.fact("it stays", len(k.States()) == 1)
			}
			k.fact("notices", len(k.look(2, core.ReadRequest{Slots: []core.RouteSlots{all}}).Notices) == tc.notice)
		})
	}
}

func (k *kit) retry(id string, in time.Duration) {
	k.Helper()
	k.no(k.settle(1, core.Retry(k.get(1, id), errNo, in))[0])
}

func TestCancelInATransaction(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(cancellable(row("a", "x")))
	tx, other := k.Begin(), k.Begin()
	sp := tx.Savepoint()
	st, err := tx.Cancel(route, "a")
	k.fact("done", st == waybill.CancelDone && err == nil)
	st, err = tx.Cancel(route, "a")
	k.fact("it is gone for the transaction", st == waybill.CancelNotFound && err == nil)
	_, err = other.Cancel(route, "a")
	k.is("another one would wait", err, core.ErrLocked)
	k.same("the committed version is read", ids(k.read(1)), []string{"a"})
	k.fact("it is locked", k.take(1, core.HoldRequest{Refs: []core.Ref{k.get(1, "a").Ref}})[0].Status == core.HoldSkipped)
	k.no(tx.RollbackTo(sp))
	k.fact("free again", k.take(1, core.HoldRequest{Refs: []core.Ref{k.get(1, "a").Ref}})[0].Status == core.HoldGranted)
	st, err = tx.Cancel(route, "a")
	k.fact("in flight", st == waybill.CancelInFlight && err == nil)

	_, err = tx.Stage(row("b", ""))
	k.no(err)
	_, err = other.Stage(row("c", ""), row("b", ""))
	k.is("another one would wait", err, core.ErrLocked)
	sp = tx.Savepoint()
	st, err = tx.Cancel(route, "b")
	k.fact("its own", st == waybill.CancelDone && err == nil)
	seqs, err := tx.Stage(row("b", "y"), row("a", "x"))
	k.fact("staged anew, and a duplicate", err == nil && seqs[0] > 0 && seqs[1] == 0)
	k.no(tx.RollbackTo(sp))
	k.no(tx.Commit())
	k.same("ready", ids(k.read(1)), []string{"a", "b"})
	k.fact("the first one", k.get(1, "b").Envelope.Key == "")
	k.is("twice", tx.Commit(), waybill.ErrClosed)
	other.Rollback()
	other.Rollback()
	seqs = k.put(row("c", ""))
	k.fact("numbers were used up", seqs[0] == 7)
}

func TestRedriveRefused(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, partition)
	k.put(row("a", "x"))
	tx := k.Begin()
	k.is("pending", tx.Redrive(route, "a"), waybill.ErrInvalid)
	k.is("none", tx.Redrive(route, "z"), waybill.ErrNotFound)
	k.retry("a", 0)
	k.no(tx.Redrive(route, "a"))
	k.is("twice", tx.Redrive(route, "a"), waybill.ErrInvalid)
	other := k.Begin()
	k.is("locked", other.Redrive(route, "a"), core.ErrLocked)
	tx.Rollback()
	k.due(1, 1)
	k.is("held", other.Redrive(route, "a"), waybill.ErrInFlight)
}
