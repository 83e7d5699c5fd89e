package outboxtest

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var snapshotChecks = []named{
	{"page-is-one-snapshot", pageIsOneSnapshot},
	{"page-and-waiting-are-one-snapshot", pageAndWaitingAreOneSnapshot},
	{"stagers-do-not-fail-beside-members", stagersDoNotFailBesideMembers},
}

// Without this a page shows the later record of a transaction and not the earlier one, and they are published in the
// wrong order.
func pageIsOneSnapshot(k *kit) {
	const writers, rounds = 4, 40
	m := k.owner(2)
	request := core.ReadRequest{Ranges: []core.Range{wide(k.part(low)), wide(k.part(high))}, BlockingLimit: 1000, Bytes: 1 << 30}
	keys := [2]string{k.keyIn(low, 0), k.keyIn(high, 0)}
	for _, key := range keys {
		request.Keys = append(request.Keys, k.ofKey(key, 10_000)...)
	}
	request.Ranges = append(request.Ranges, request.Ranges[0])
	var done atomic.Int32
	suitetest.Parallel(writers+1, func(i int) {
		if i < writers {
			defer done.Add(1)
			for n := range rounds {
				pair := fmt.Sprintf("%s-%d-%d", k.route, i, n)
				k.stageBusy(k.row(key(keys[n%2]), id(pair+"-a")), k.row(key(keys[1-n%2]), id(pair+"-b")))
				k.sleep(pause / 5)
			}
			return
		}
		for last := false; ; {
			p := m.read(request)
			seen := make([]map[string]bool, 0, 5)
			for _, r := range p.Ranges {
				seen = append(seen, pairs(r.Records))
			}
			for _, r := range p.Keys {
				seen = append(seen, pairs(r.Records))
			}
			for j := 1; j < len(seen); j++ {
				k.failIf(len(seen[j]) != len(seen[0]),
					"transactions write two records each, in the range of two ranges and keys: a page shows the records of %d transactions in the first range and of %d in answer %d", len(seen[0]), len(seen[j]), j)
			}
			if last {
				k.failIf(len(seen[0]) != writers*rounds, "%d transactions committed and %d are seen", writers*rounds, len(seen[0]))
				return
			}
			last = done.Load() == writers
			k.sleep(pause / 5)
		}
	})
}

// pairs returns the names of the transactions whose records are among rs.
func pairs(rs []core.Record) map[string]bool {
	out := map[string]bool{}
	for i := range rs {
		out[rs[i].ID[:len(rs[i].ID)-2]] = true
	}
	return out
}

// Without this a record that goes from ready to waiting is in neither answer, and its key goes on without it.
func pageAndWaitingAreOneSnapshot(k *kit) {
	m, reader := k.owner(1), k.join(1)
	rs := m.some(40, key("k"))
	var done atomic.Bool
	suitetest.Parallel(2, func(i int) {
		if i == 0 {
			defer done.Store(true)
			for j := range rs {
				m.settle(core.Retry(&rs[j], errNo, far))
				k.sleep(pause / 5)
			}
			return
		}
		for !done.Load() {
			p := reader.read(core.ReadRequest{
				Ranges: []core.Range{wide(k.all())}, Keys: k.ofKey("k", 100), NewlyOwned: []core.RouteSlots{k.all()}, Recheck: refs(rs), BlockingLimit: 100, Bytes: 1 << 20,
			})
			n := []int{
				len(p.Ranges[0].Records) + len(p.Blocking), len(p.Keys[0].Records) + len(p.Keys[0].Blocking), len(p.Rechecked) + len(p.RecheckedBlocking),
				len(p.Ranges[0].Records) + len(p.RecheckedBlocking), len(p.Keys[0].Records) + len(p.Blocking),
			}
			k.failIf(slices.Min(n) != len(rs) || slices.Max(n) != len(rs),
				"of %d records each is ready or waits, and the answers of one page show %v", len(rs), n)
			k.sleep(pause / 5)
		}
	})
}

// stageBusy is stage for several writers at once: of a database with one writer an error is tried again.
func (k *kit) stageBusy(rows ...core.StagedRow) {
	var err error
	k.until("a transaction could stage", func() bool {
		err = k.tryStage(rows...)
		k.failIf(err != nil && !k.single(), "stage: %w", err)
		return err == nil
	})
}

func (k *kit) tryStage(rows ...core.StagedRow) error {
	tx, err := k.h.Begin(k.ctx)
	if err != nil {
		return err
	}
	if err = tx.Stage(k.ctx, rows...); err == nil {
		err = tx.Commit(k.ctx)
	}
	return core.Results{err, tx.Rollback(k.ctx)}.FirstErr()
}

// Without this an application's transactions fail because a relay runs: a statement of the store locks more than the
// records it changes, such as gaps of an index or rows that have not committed.
func stagersDoNotFailBesideMembers(k *kit) {
	if k.single() {
		k.undeclared("stagers beside each other")
	}
	const writers, rounds, members = 4, 25, 2
	k.join(members)
	var done atomic.Int32
	suitetest.Parallel(writers+members, func(i int) {
		if i >= writers {
			m := k.join(members)
			for last := false; !last; k.sleep(pause / 5) {
				last = done.Load() == writers
				m.turn()
			}
			return
		}
		defer done.Add(1)
		for n := range rounds {
			tx := k.begin()
			for range 3 {
				// No two writers have a key or an id in common.
				k.must("stage beside members", tx.Stage(k.ctx, k.row(), k.row(key(k.keyIn(core.AllSlots, i))), k.row(delay(pause))))
				if n%5 == 0 {
					k.sleep(pause / 5)
				}
			}
			k.must("commit beside members", tx.Commit(k.ctx))
		}
	})
}

// turn does once what an engine does all the time: it takes a free partition, reads, holds, settles, and releases the
// partition.
func (m *member) turn() {
	k := m.k
	var mine *core.PartitionState
	for _, u := range k.partitions(m.heartbeat()) {
		if u.Owner == 0 && mine == nil {
			mine = &u
		}
	}
	if mine == nil {
		return
	}
	k.partitions(m.heartbeat(moves(core.Transfer{Partition: mine.Partition, To: m.self.Session})))
	m.duePart(k.part(mine.Partition.Slots()), 20)
	p := m.read(core.ReadRequest{
		Slots: []core.RouteSlots{k.part(mine.Partition.Slots())}, NewlyOwned: []core.RouteSlots{k.part(mine.Partition.Slots())},
		Ranges: []core.Range{{RouteSlots: k.part(mine.Partition.Slots()), UpToSeq: forever, Limit: 20}}, BlockingLimit: 20, Bytes: 1 << 20,
	})
	var os []core.Outcome
	taken := m.sendHold(core.HoldRequest{Refs: refs(p.Ranges[0].Records)})
	for i := range p.Ranges[0].Records {
		if r := &p.Ranges[0].Records[i]; taken[i].Status == core.HoldGranted {
			os = append(os, []func(*core.Record) core.Outcome{
				core.Published, func(r *core.Record) core.Outcome { return core.Retry(r, errNo, pause) }, core.Published,
			}[i%3](r))
		}
	}
	m.trySettle(os...)
	for _, u := range k.partitions(m.heartbeat()) {
		if u.Owner == m.self.Session {
			_, _ = m.tryRelease(u, 0)
		}
	}
}
