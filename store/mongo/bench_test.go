package mongo

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

const benchRoute = "bench"

// in runs fn in a transaction of the application.
func in(tb testing.TB, s *Store, fn func(ctx context.Context, tx *driver.Session) error) {
	tb.Helper()
	u, err := s.NewUnitOfWork()
	if err == nil {
		err = u.Do(tb.Context(), fn)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

func all(route string) core.RouteSlots { return core.RouteSlots{Route: route, Slots: core.AllSlots} }

var sessions atomic.Int64

// join makes a member that owns all of the routes.
func join(tb testing.TB, s *Store, routes ...string) core.Member {
	tb.Helper()
	m := core.Member{Session: core.Session(sessions.Add(1)), Name: "tester", Heartbeats: 1, Lease: 10 * time.Second, Capacity: 1, FreeCapacity: 1}
	for _, r := range routes {
		m.Routes = append(m.Routes, core.ServedRoute{Route: r, InitialPartitions: 2})
	}
	r, err := s.Heartbeat(tb.Context(), core.HeartbeatRequest{Self: m, Join: true})
	if err != nil {
		tb.Fatal(err)
	}
	var moves []core.Transfer
	for _, u := range r.Partitions {
		moves = append(moves, core.Transfer{Partition: u.Partition, From: u.Owner, To: m.Session})
	}
	if _, err := s.Heartbeat(tb.Context(), core.HeartbeatRequest{Self: m, Transfers: moves}); err != nil {
		tb.Fatal(err)
	}
	return m
}

// nowhere is a broker that confirms at once.
type nowhere struct{}

func (nowhere) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true}
}

func (nowhere) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	return make(core.Results, len(batch))
}

// benchRelay lets a relay publish what is there to nowhere.
func benchRelay(b *testing.B, s *Store, put func()) {
	b.Helper()
	r, err := relay.New(s, nowhere{}, relay.Options{Routes: []relay.Route{{Name: benchRoute}}, Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for range b.N {
		b.StopTimer()
		for range 10 {
			put()
		}
		b.StartTimer()
		sum, err := r.RunOnce(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		n += sum.Published
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(max(n, 1)), "µs/message")
}

// BenchmarkDrain stages, and reads and settles in pages of 500, of 1,000 keys. By hand is the loop of an application
// that needs no order, no second relay and no transaction: find 500 documents, delete them.
func BenchmarkDrain(b *testing.B) {
	s := open(b, Options{})
	put := func() {
		msgs := make([]waybill.Message, 1000)
		for i := range msgs {
			msgs[i] = waybill.RawMessage("t.x", "text/plain", make([]byte, 200), waybill.Key(strconv.Itoa(i)), waybill.Routes(benchRoute))
		}
		in(b, s, func(ctx context.Context, tx *driver.Session) error {
			_, err := s.Stage(ctx, tx, msgs...)
			return err
		})
	}
	b.Run("stage", func(b *testing.B) {
		for range b.N {
			put()
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "µs/message")
	})
	drained := func(b *testing.B, page func() int) {
		b.Helper()
		n := 0
		for range b.N {
			got := page()
			if got == 0 {
				b.StopTimer()
				put()
				b.StartTimer()
			}
			n += got
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(max(n, 1)), "µs/message")
	}
	b.Run("relay", func(b *testing.B) { benchRelay(b, s, put) })
	self := join(b, s, benchRoute).Session
	b.Run("drain", func(b *testing.B) {
		var last int64
		var reading time.Duration
		defer func() { b.ReportMetric(float64(reading.Microseconds())/float64(b.N), "µs/read") }()
		drained(b, func() int {
			began := time.Now()
			p, err := s.Read(b.Context(), self, core.ReadRequest{
				KnownLastSeq: last, Slots: []core.RouteSlots{all(benchRoute)}, Ranges: []core.Range{{RouteSlots: all(benchRoute), UpToSeq: 1 << 62, Limit: 500}},
			})
			if err != nil {
				b.Fatal(err)
			}
			reading += time.Since(began)
			rs := p.Ranges[0].Records
			out := make([]core.Outcome, len(rs))
			for i := range rs {
				out[i] = core.Published(&rs[i])
			}
			if err := s.Settle(b.Context(), self, out).FirstErr(); err != nil {
				b.Fatal(err)
			}
			last = p.LastSeq
			return len(rs)
		})
	})
	b.Run("byhand", func(b *testing.B) {
		drained(b, func() int {
			cur, err := s.outbox.Find(b.Context(), bson.M{"route": benchRoute, "phase": phaseReady},
				options.Find().SetHint("waybill_ready").SetSort(bson.M{"seq": 1}).SetLimit(500).SetBatchSize(500))
			if err != nil {
				b.Fatal(err)
			}
			var docs []record
			if err := cur.All(b.Context(), &docs); err != nil {
				b.Fatal(err)
			}
			ids := make(bson.A, len(docs))
			for i := range docs {
				ids[i] = docs[i].ID
			}
			if len(ids) > 0 {
				if _, err := s.outbox.DeleteMany(b.Context(), bson.M{"_id": bson.M{"$in": ids}}); err != nil {
					b.Fatal(err)
				}
			}
			return len(docs)
		})
	})
	b.Run("look", func(b *testing.B) {
		for range b.N {
			request := core.ReadRequest{Slots: []core.RouteSlots{all(benchRoute)}, Ranges: []core.Range{{RouteSlots: all(benchRoute), AfterSeq: 1 << 60, UpToSeq: 1 << 62}}}
			if _, err := s.Read(b.Context(), self, request); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("due", func(b *testing.B) {
		for range b.N {
			if _, err := s.Due(b.Context(), self, []core.RouteSlots{all(benchRoute)}, 100); err != nil {
				b.Fatal(err)
			}
		}
	})
}
