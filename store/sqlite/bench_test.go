package sqlite

import (
	"context"
	"database/sql"
	"strconv"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Staging, and reading and settling in pages of 500, of 1,000 keys, beside a backlog of another route.
func BenchmarkDrain(b *testing.B) {
	s := open(b, Options{})
	self := join(b, s, route).Session
	msgs := func(route string) []waybill.Message {
		out := make([]waybill.Message, 1000)
		for i := range out {
			out[i] = waybill.RawMessage("t.x", "text/plain", make([]byte, 200), waybill.Key(strconv.Itoa(i)), waybill.Routes(route))
		}
		return out
	}
	put := func(route string) {
		in(b, s, func(ctx context.Context, tx *sql.Tx) error {
			_, err := s.Stage(ctx, tx, msgs(route)...)
			return err
		})
	}
	for range 20 {
		put("other")
	}
	b.Run("stage", func(b *testing.B) {
		for range b.N {
			put(route)
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "µs/message")
	})
	b.Run("drain", func(b *testing.B) {
		var last int64
		n := 0
		for range b.N {
			p, err := s.Read(b.Context(), self, core.ReadRequest{
				KnownLastSeq: last, Slots: []core.RouteSlots{all(route)},
				Ranges: []core.Range{{RouteSlots: all(route), UpToSeq: 1 << 62, Limit: 500}},
			})
			if err != nil {
				b.Fatal(err)
			}
			rs := p.Ranges[0].Records
			if len(rs) == 0 {
				b.StopTimer()
				put(route)
				b.StartTimer()
				continue
			}
			out := make([]core.Outcome, len(rs))
			for i := range rs {
				out[i] = core.Published(&rs[i])
			}
			settle(b, s, self, out...)
			n += len(rs)
			last = p.LastSeq
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(max(n, 1)), "µs/message")
	})
	b.Run("look", func(b *testing.B) {
		for range b.N {
			if _, err := s.Read(b.Context(), self,
				core.ReadRequest{
					Slots:  []core.RouteSlots{all(route)},
					Ranges: []core.Range{{RouteSlots: all(route), AfterSeq: 1 << 60, UpToSeq: 1 << 62}},
				}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("due", func(b *testing.B) {
		for range b.N {
			if _, err := s.Due(b.Context(), self, []core.RouteSlots{all(route)}, 100); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("renewal", func(b *testing.B) {
		m := core.Member{Session: self, Name: "bench", Routes: []core.ServedRoute{{Route: route, InitialPartitions: 64}}}
		for i := range b.N {
			m.Heartbeats = int64(i) + 2
			heartbeat(b, s, core.HeartbeatRequest{Self: m})
		}
	})
	b.Run("membership", func(b *testing.B) {
		for range b.N {
			heartbeat(b, s, core.HeartbeatRequest{})
		}
	})
}
