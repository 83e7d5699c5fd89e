package postgres_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// fill stages n rows of route in transactions of 1,000, with one of so many keys each.
func fill(tb testing.TB, s *postgres.Outbox, begin func() (pgx.Tx, error), route string, n, keys int) {
	tb.Helper()
	for i := 0; i < n; i += 1000 {
		rows := make([]core.StagedRow, min(1000, n-i))
		for j := range rows {
			key := ""
			if keys > 0 {
				key = "k" + strconv.Itoa((i+j)%keys)
			}
			rows[j] = row(route, waybill.NewID(), key)
			rows[j].GeneratedID = true
		}
		tx, err := begin()
		if err == nil {
			err = s.StageRows(tb.Context(), tx, rows...)
		}
		if err == nil {
			err = tx.Commit(tb.Context())
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

func BenchmarkDrain(b *testing.B) {
	for _, keys := range []int{0, 1000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			s, pool := newOutbox(b, postgres.Options{})
			self := join(b, s, "r", 64)
			const page = 1000
			fill(b, s, func() (pgx.Tx, error) { return pool.Begin(b.Context()) }, "r", b.N, keys)
			var from int64
			var reading time.Duration
			b.ResetTimer()
			for done := 0; done < b.N; {
				began := time.Now()
				p, err := s.Read(b.Context(), self, core.ReadRequest{
					Slots: []core.RouteSlots{all("r")}, Ranges: []core.Range{{RouteSlots: all("r"), AfterSeq: from, UpToSeq: 1 << 62, Limit: page}}, Bytes: 1 << 24,
				})
				if err != nil {
					b.Fatal(err)
				}
				reading += time.Since(began)
				rs := p.Ranges[0].Records
				outcomes := make([]core.Outcome, len(rs))
				for i := range rs {
					outcomes[i] = core.Published(&rs[i])
				}
				if err := s.Settle(b.Context(), self, outcomes).FirstErr(); err != nil || len(rs) == 0 {
					b.Fatal(err, len(rs))
				}
				from = rs[len(rs)-1].Seq
				done += len(rs)
			}
			b.ReportMetric(float64(reading)/float64(b.N), "read-ns/op")
		})
	}
}

func BenchmarkReadNothing(b *testing.B) {
	for _, routes := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("routes=%d", routes), func(b *testing.B) {
			s, _ := newOutbox(b, postgres.Options{})
			m := core.Member{Session: newSession(), Heartbeats: 1, Lease: time.Second, Capacity: 1, FreeCapacity: 1}
			request := core.ReadRequest{Bytes: 1 << 24}
			var moves []core.Transfer
			for i := range routes {
				p := all("r" + strconv.Itoa(i))
				m.Routes = append(m.Routes, core.ServedRoute{Route: p.Route, InitialPartitions: 1})
				moves = append(moves, core.Transfer{Partition: core.Partition{Route: p.Route, To: 64}, To: m.Session})
				request.Slots, request.Ranges = append(request.Slots, p), append(request.Ranges, core.Range{RouteSlots: p, UpToSeq: 1 << 62, Limit: 100})
			}
			if _, err := s.Heartbeat(b.Context(), core.HeartbeatRequest{Self: m, Join: true, Transfers: moves}); err != nil {
				b.Fatal(err)
			}
			b.Run("Read", func(b *testing.B) {
				for range b.N {
					if p, err := s.Read(b.Context(), m.Session, request); err != nil || p.Owned[0] != core.AllSlots {
						b.Fatal(err)
					}
				}
			})
			b.Run("Heartbeat", func(b *testing.B) {
				for range b.N {
					m.Heartbeats++
					if r, err := s.Heartbeat(b.Context(), core.HeartbeatRequest{Self: m}); err != nil || len(r.Partitions) != routes {
						b.Fatal(err)
					}
				}
			})
			b.Run("look", func(b *testing.B) {
				for range b.N {
					if _, err := s.Heartbeat(b.Context(), core.HeartbeatRequest{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
