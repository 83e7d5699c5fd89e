package outboxtest

import (
	"sync/atomic"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var besideChecks = []named{
	{"stagers-do-not-fail-beside-members", stagersDoNotFailBesideMembers},
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
