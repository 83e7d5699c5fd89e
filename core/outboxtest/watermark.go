package outboxtest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var watermarkChecks = []named{
	{"last-covers-the-page", lastCoversThePage},
	{"page-names-a-running-transaction", pageNamesARunningTransaction},
	{"transactions-come-to-rest", transactionsComeToRest},
	{"page-holds-for-random-transactions", pageHoldsForRandomTransactions},
}

// Without this the engine reads on from a number that is too low and hands a record out twice, or does not see that the
// database went back.
func lastCoversThePage(k *kit) {
	m := k.owner(1)
	last := int64(0)
	for range 5 {
		rs := m.some(3)
		p := m.read(core.ReadRequest{KnownLastSeq: last, BlockingLimit: 1, Bytes: 1})
		k.failIf(p.LastSeq < rs[2].Seq || p.LastSeq < last,
			"a page says that the last number is %d; %d was seen before, and %d in a record", p.LastSeq, last, rs[2].Seq)
		k.failIf(p.LastSeqXmax == 0, "numbers were drawn since the caller saw %d, and the page has no Upper", last)
		last = p.LastSeq
	}
}

// pending is a page up to whose last number transactions may still show something.
type pending struct {
	last    int64
	from    int64 // ids from here to upper, and
	upper   int64
	running []int64
}

// watch follows the transaction ids of pages. Each was asked for after the one before was answered.
type watch struct {
	k       *kit
	open    []pending
	settled int64 // all that will ever show up to this number was shown
	last    int64
}

// see takes in a page: it returns the number up to which everything was shown, by this page at the latest.
func (w *watch) see(p *core.ReadResult) int64 {
	if p.LastSeqXmax != 0 {
		w.open = append(w.open, pending{last: p.LastSeq, from: p.SnapshotXmax, upper: p.LastSeqXmax, running: slices.Clone(p.RunningTxs)})
	}
	w.last = max(w.last, p.LastSeq)
	lives := func(id int64) bool { return id >= p.SnapshotXmax || slices.Contains(p.RunningTxs, id) }
	w.open = slices.DeleteFunc(w.open, func(o pending) bool {
		ended := !slices.ContainsFunc(o.running, func(id int64) bool { return id < o.upper && lives(id) })
		ended = ended && (o.from >= o.upper || p.SnapshotXmax >= o.upper) &&
			!slices.ContainsFunc(p.RunningTxs, func(id int64) bool { return id >= o.from && id < o.upper })
		if ended {
			w.settled = max(w.settled, o.last)
		}
		return ended
	})
	return w.settled
}

// page reads all records, in one page, and follows its transaction ids.
func (w *watch) page(m *member) (rs []core.Record, settled int64) {
	request := w.k.everything()
	request.KnownLastSeq = w.last
	p := m.read(request)
	return p.Ranges[0].Records, w.see(&p)
}

// Without this a record that commits late is passed over until a member walks over its range again.
func pageNamesARunningTransaction(k *kit) {
	if k.single() {
		k.undeclared("two transactions at once")
	}
	if k.traits.MaxLateCommit > 0 {
		k.undeclared("exact transaction ids")
	}
	m := k.owner(1)
	for _, end := range []func(Tx){k.commit, k.rollback} {
		w := &watch{k: k}
		tx := k.begin()
		first := k.row()
		k.stageIn(tx, first)
		later := k.stage(k.row())
		rs, settled := w.page(m)
		at := slices.IndexFunc(rs, func(r core.Record) bool { return r.ID == later[0] })
		k.failIf(at < 0, "a committed record is not ready")
		later2 := rs[at].Seq
		k.stage(k.row())
		for range 3 {
			if _, settled = w.page(m); settled >= later2 {
				break
			}
		}
		end(tx)
		rs, _ = w.page(m)
		late := slices.IndexFunc(rs, func(r core.Record) bool { return r.ID == first.Envelope.ID })
		if late >= 0 && rs[late].Seq <= settled {
			k.fail("a record with number %d showed after a page that said that all up to %d is shown", rs[late].Seq, settled)
		}
		k.until("a page says that the transaction has ended", func() bool { _, s := w.page(m); return s >= later2 })
	}
}

// Without this the engine reads the same range over and over although nothing can appear in it.
func transactionsComeToRest(k *kit) {
	if k.traits.MaxLateCommit > suitetest.Patience/2 {
		k.undeclared("transactions that come to rest within seconds")
	}
	m := k.owner(1)
	for range 3 {
		w := &watch{k: k}
		rs := m.some(2)
		tx := k.begin()
		k.stageIn(tx, k.row())
		k.rollback(tx)
		k.until("a page says that no transaction runs", func() bool { _, s := w.page(m); return s >= rs[1].Seq })
	}
}

// storm is what the random transactions of a check did.
type storm struct {
	mu        sync.Mutex
	committed map[string]bool      // an id, and whether it committed: unknown are absent
	began     map[string]time.Time // when its transaction began
}

// Without this a record is lost: it appears behind the place from which its owner reads on.
func pageHoldsForRandomTransactions(k *kit) {
	const writers, rounds = 8, 20
	readers := []*member{k.owner(3), k.join(3)}
	s := &storm{committed: map[string]bool{}, began: map[string]time.Time{}}
	var done atomic.Int32
	suitetest.Parallel(writers+len(readers), func(i int) {
		if i < writers {
			defer done.Add(1)
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range rounds {
				s.transaction(k, rnd, fmt.Sprintf("%s-%d-%d", k.route, i, n))
			}
			return
		}
		s.reader(k, readers[i-writers], func() bool { return done.Load() == writers })
	})
}

func (s *storm) reader(k *kit, m *member, done func() bool) {
	w := &watch{k: k}
	seen := map[string]bool{}
	for settled := int64(0); ; {
		last := done()
		rs, now := w.page(m)
		for i := range rs {
			r := &rs[i]
			if seen[r.ID] {
				continue
			}
			seen[r.ID] = true
			// A page shows the numbers that it settles; settled is of the pages before.
			k.failIf(r.Seq <= settled && s.age(k, r.ID) > k.traits.MaxLateCommit,
				"a record with number %d showed after a page that said that all up to %d is shown", r.Seq, settled)
		}
		settled = now
		if last {
			break
		}
		k.sleep(pause / 5)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, committed := range s.committed {
		k.failIf(seen[id] != committed, "a record whose transaction committed (%v) was seen: %v", committed, seen[id])
	}
	k.failIf(len(seen) == 0, "no transaction committed")
}

// age is how long ago the record's transaction began.
func (s *storm) age(k *kit, id string) time.Duration {
	if k.traits.MaxLateCommit == 0 {
		return forever
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return k.now().Sub(s.began[id])
}

// transaction runs one random transaction: some statements with some records, perhaps a savepoint, perhaps slow.
func (s *storm) transaction(k *kit, rnd *rand.Rand, name string) {
	began := k.now()
	tx, err := k.h.Begin(k.ctx)
	if err != nil && k.single() {
		return
	}
	k.must("begin", err)
	defer func() { _ = tx.Rollback(k.ctx) }()
	var kept, dropped, part []string
	sp, _ := core.As[Savepointer](tx)
	saved := false
	for i := range 1 + rnd.IntN(4) {
		if sp != nil && !saved && rnd.IntN(4) == 0 {
			k.must("set a savepoint", sp.Savepoint(k.ctx))
			saved = true
		}
		rows := make([]core.StagedRow, 1+rnd.IntN(3))
		for j := range rows {
			rows[j] = k.row(id(fmt.Sprintf("%s-%d-%d", name, i, j)))
			if rnd.IntN(3) > 0 {
				rows[j].Envelope.Key = fmt.Sprint("key-", rnd.IntN(10))
			}
		}
		s.begin(began, rowIDs(rows))
		if err := tx.Stage(k.ctx, rows...); err != nil {
			if k.single() {
				return
			}
			k.fail("stage: %w", err)
		}
		if saved {
			part = append(part, rowIDs(rows)...)
		} else {
			kept = append(kept, rowIDs(rows)...)
		}
		if saved && rnd.IntN(2) == 0 {
			k.must("roll back to a savepoint", sp.RollbackTo(k.ctx))
			dropped, part, saved = append(dropped, part...), nil, false
		}
		if slow := rnd.IntN(20); slow == 0 {
			k.sleep(10 * time.Duration(1+rnd.IntN(10)) * time.Millisecond)
		} else if slow < 10 {
			k.sleep(time.Duration(rnd.IntN(3000)) * time.Microsecond)
		}
	}
	kept = append(kept, part...)
	if rnd.IntN(5) == 0 {
		k.rollback(tx)
		dropped, kept = append(dropped, kept...), nil
	} else if err := tx.Commit(k.ctx); err != nil {
		if k.single() {
			return
		}
		k.fail("commit: %w", err)
	}
	s.end(kept, dropped)
}

func (s *storm) begin(at time.Time, ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.began[id] = at
	}
}

func (s *storm) end(kept, dropped []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range kept {
		s.committed[id] = true
	}
	for _, id := range dropped {
		s.committed[id] = false
	}
}
