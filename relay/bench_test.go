package relay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

// feed is a store that always has a full batch, and forgets what is settled: what is measured is the relay.
type feed struct {
	left    int
	keyed   bool
	settled chan int
}

func (f *feed) Traits() core.StoreTraits { return core.StoreTraits{KeyOrder: true} }

func (f *feed) Claim(_ context.Context, req core.ClaimRequest) (core.Claim, error) {
	n := min(f.left, req.MaxRecords)
	f.left -= n
	recs := make([]core.Record, n)
	for i := range recs {
		recs[i] = core.Record{Route: core.DefaultRoute, Lease: core.Lease{Token: 1, Remaining: req.Lease}}
		if f.keyed {
			recs[i].Envelope.Key = benchKeys[i]
		}
	}
	return core.Claim{Records: recs, More: f.left > 0, NextIn: -1}, nil
}

func (f *feed) Settle(_ context.Context, o []core.Outcome) core.Results {
	f.settled <- len(o)
	return make(core.Results, len(o))
}

var benchKeys = func() (k []string) {
	for i := range relay.DefaultBatchSize {
		k = append(k, fmt.Sprint("key-", i))
	}
	return k
}()

type sink struct{}

func (sink) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true}
}

func (sink) Publish(_ context.Context, b []core.Envelope) core.Results {
	return make(core.Results, len(b))
}

// RL-11: what the relay itself costs a message, with a store and a broker that cost nothing.
func BenchmarkRelay(b *testing.B) {
	for _, keyed := range []bool{false, true} {
		b.Run(fmt.Sprintf("keyed=%v", keyed), func(b *testing.B) {
			f := &feed{left: b.N, keyed: keyed, settled: make(chan int, 64)}
			r := newRelay(b, f, sink{}, relay.Options{})
			b.ReportAllocs()
			b.ResetTimer()
			start := time.Now()
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			for n := 0; n < b.N; {
				n += <-f.settled
			}
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "msg/s")
			cancel()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		})
	}
}
