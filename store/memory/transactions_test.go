package memory_test

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// unseen is a record that a page did not show, with the transaction ids of that page.
type unseen struct {
	id     string
	tx     int64
	result core.ReadResult
}

// over reports whether everything that the page warned of has ended, as a later page says.
func (u *unseen) over(later *core.ReadResult) bool {
	ended := func(tx int64) bool { return tx < later.SnapshotXmax && !slices.Contains(later.RunningTxs, tx) }
	for _, m := range u.result.RunningTxs {
		if !ended(m) {
			return false
		}
	}
	for m := u.result.SnapshotXmax; m < u.result.LastSeqXmax; m++ {
		if !ended(m) {
			return false
		}
	}
	return true
}

// TestTransactionIDsNeverLie: a record with a sequence up to Last that a page does not show belongs to a transaction
// that the page names. When all named transactions have ended, the record is seen, if it was committed.
func TestTransactionIDsNeverLie(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		k := newKit(t, memory.Options{})
		k.join(1, partition)
		var (
			open      []*memory.Tx
			staged    = map[*memory.Tx]map[string]int64{} // by id
			saved     = map[*memory.Tx][]map[string]int64{}
			points    = map[*memory.Tx][]memory.Savepoint{}
			committed = map[string]bool{}
			missing   []unseen
			n         int
			last      int64
		)
		pick := func() *memory.Tx {
			if len(open) == 0 {
				rt.Skip("no transaction")
			}
			return rapid.SampledFrom(open).Draw(rt, "tx")
		}
		drop := func(tx *memory.Tx) {
			open = slices.DeleteFunc(open, func(o *memory.Tx) bool { return o == tx })
			delete(staged, tx)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"begin": func(*rapid.T) {
				tx := k.Begin()
				open = append(open, tx)
				staged[tx] = map[string]int64{}
			},
			"stage": func(rt *rapid.T) {
				tx := pick()
				rows := make([]core.StagedRow, rapid.IntRange(1, 3).Draw(rt, "rows"))
				for i := range rows {
					n++
					rows[i] = row("m"+strconv.Itoa(n), rapid.SampledFrom([]string{"", "x", "y"}).Draw(rt, "key"))
				}
				seqs, err := tx.Stage(rows...)
				if err != nil {
					rt.Fatal(err)
				}
				for i, seq := range seqs {
					staged[tx][rows[i].Envelope.ID] = seq
				}
			},
			"savepoint": func(*rapid.T) {
				tx := pick()
				points[tx] = append(points[tx], tx.Savepoint())
				saved[tx] = append(saved[tx], maps.Clone(staged[tx]))
			},
			"rollback to": func(rt *rapid.T) {
				tx := pick()
				if len(points[tx]) == 0 {
					rt.Skip("no savepoint")
				}
				i := rapid.IntRange(0, len(points[tx])-1).Draw(rt, "savepoint")
				if err := tx.RollbackTo(points[tx][i]); err != nil {
					rt.Fatal(err)
				}
				staged[tx] = maps.Clone(saved[tx][i])
				points[tx], saved[tx] = points[tx][:i+1], saved[tx][:i+1]
			},
			"commit": func(rt *rapid.T) {
				tx := pick()
				if err := tx.Commit(); err != nil {
					rt.Fatal(err)
				}
				for id := range staged[tx] {
					committed[id] = true
				}
				drop(tx)
			},
			"rollback": func(*rapid.T) {
				tx := pick()
				tx.Rollback()
				drop(tx)
			},
			"read": func(rt *rapid.T) {
				p := k.look(1, core.ReadRequest{KnownLastSeq: last, Ranges: []core.Range{everything}})
				seen := map[string]bool{}
				for _, r := range p.Ranges[0].Records {
					if r.Seq > p.LastSeq {
						rt.Fatalf("%s has %d, behind Last %d", r.ID, r.Seq, p.LastSeq)
					}
					seen[r.ID] = true
				}
				for _, u := range missing {
					if u.over(&p) && committed[u.id] && !seen[u.id] {
						rt.Fatalf("%s of transaction %d is not seen after all of %v and [%d, %d) has ended", u.id, u.tx,
							u.result.RunningTxs, u.result.SnapshotXmax, u.result.LastSeqXmax)
					}
				}
				missing = slices.DeleteFunc(missing, func(u unseen) bool { return u.over(&p) })
				for tx, rows := range staged {
					for id, seq := range rows {
						m := tx.ID()
						warned := slices.Contains(p.RunningTxs, m) || m >= p.SnapshotXmax && m < p.LastSeqXmax
						if seq > last && seq <= p.LastSeq && !warned {
							rt.Fatalf("%s with %d of transaction %d can still appear: running %v, [%d, %d)", id, seq, m,
								p.RunningTxs, p.SnapshotXmax, p.LastSeqXmax)
						}
						missing = append(missing, unseen{id, m, p})
					}
				}
				last = p.LastSeq
			},
			"": func(rt *rapid.T) {
				for id := range committed {
					if k.state(id) == nil {
						rt.Fatalf("%s was committed and is not stored", id)
					}
				}
			},
		})
	})
}
