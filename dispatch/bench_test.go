package dispatch_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/store/memory"
)

// BenchmarkDrain hands out and settles records, against a store in memory: nearly all of it is the engine's own work
// and the store's.
func BenchmarkDrain(b *testing.B) {
	for _, keys := range []int{0, 1000, 1} {
		b.Run("keys="+strconv.Itoa(keys), func(b *testing.B) {
			now := time.Now()
			st, err := memory.New(memory.Options{Source: "/bench", Now: func() time.Time { return now }})
			if err != nil {
				b.Fatal(err)
			}
			tx := st.Begin()
			for i := range b.N {
				row := core.StagedRow{Route: "default", Envelope: waybill.Envelope{ID: strconv.Itoa(i), Topic: "t", Body: []byte("body")}}
				if keys > 0 {
					row.Envelope.Key = "k" + strconv.Itoa(i%keys)
				}
				if _, err := tx.Stage(row); err != nil {
					b.Fatal(err)
				}
			}
			if err := tx.Commit(); err != nil {
				b.Fatal(err)
			}
			d := dispatch.New(dispatch.Options{NewSession: func() core.Session { return 1 }, Routes: []dispatch.Route{{Name: "default"}}})
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; {
				for _, c := range d.Calls(now) {
					c.Do(context.Background(), st)
					d.Done(now, c)
				}
				items := d.HandOut(now, "default", 500)
				for _, item := range items {
					d.Conclude(now, item, core.Published(&item.Record))
				}
				if done += len(items); len(items) == 0 {
					now = now.Add(time.Millisecond)
				}
			}
		})
	}
}

// BenchmarkReadBesideWaitingKeys is the engine's own work for a message that is staged, read, handed out and settled
// alone, beside keys that wait for a retry. The work of the store does not count.
func BenchmarkReadBesideWaitingKeys(b *testing.B) {
	for _, waiting := range []int{0, 95_000} {
		b.Run("waiting="+strconv.Itoa(waiting), func(b *testing.B) {
			now := time.Now()
			st, err := memory.New(memory.Options{Source: "/bench", Now: func() time.Time { return now }})
			if err != nil {
				b.Fatal(err)
			}
			stage := func(kind string, n int) {
				tx := st.Begin()
				for i := range n {
					id := kind + strconv.Itoa(i)
					if _, err := tx.Stage(core.StagedRow{Route: "default", Envelope: waybill.Envelope{ID: id, Topic: "t", Key: id, Body: []byte("body")}}); err != nil {
						b.Fatal(err)
					}
				}
				if err := tx.Commit(); err != nil {
					b.Fatal(err)
				}
			}
			d := dispatch.New(dispatch.Options{NewSession: func() core.Session { return 1 }, Routes: []dispatch.Route{{Name: "default"}}})
			reads := 0
			handle := func(n int, outcome func(rec *core.Record) core.Outcome) {
				for done := 0; done < n || d.Unsettled() > 0; now = now.Add(time.Millisecond) {
					for _, c := range d.Calls(now) {
						if c.Kind() == dispatch.CallRead {
							reads++
						}
						b.StopTimer()
						c.Do(context.Background(), st)
						b.StartTimer()
						d.Done(now, c)
					}
					items := d.HandOut(now, "default", 500)
					for _, item := range items {
						d.Conclude(now, item, outcome(&item.Record))
					}
					done += len(items)
				}
			}
			stage("waits", waiting)
			handle(waiting, func(rec *core.Record) core.Outcome { return core.Retry(rec, errRefused, 1000*time.Hour) })
			if got := d.Status("default").Keys; got != waiting {
				b.Fatalf("%d keys are remembered, want %d", got, waiting)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				b.StopTimer()
				stage("b"+strconv.Itoa(i)+" ", 1)
				b.StartTimer()
				reads = 0
				handle(1, func(rec *core.Record) core.Outcome { return core.Published(rec) })
			}
			b.ReportMetric(float64(reads), "reads")
		})
	}
}

var errRefused = errors.New("refused")
