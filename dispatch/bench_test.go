package dispatch_test

import (
	"context"
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
				items := d.Hand(now, "default", 500)
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
