package relay_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
	"github.com/waybill-go/waybill/relay"
)

// feed is a store that always has a full page, and forgets what is settled: what is measured is the relay.
type feed struct {
	mu      sync.Mutex
	member  outbox.Member
	owner   outbox.Session
	last    int64
	keys    []string
	settled chan int
}

func (*feed) Traits() outbox.Traits { return outbox.Traits{SessionFence: true} }

func (f *feed) Meet(_ context.Context, m outbox.Meeting) (outbox.Roster, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.member = m.Self
	for _, mv := range m.Moves {
		f.owner = mv.To
	}
	u := outbox.Owned{Unit: outbox.Unit{Route: core.DefaultRoute, To: outbox.NumSlots}, Owner: f.owner}
	return outbox.Roster{Known: true, Epoch: "1", Members: []outbox.Member{f.member}, Units: []outbox.Owned{u}}, nil
}

func (f *feed) Read(_ context.Context, _ outbox.Session, look outbox.Look) (outbox.Page, error) {
	p := outbox.Page{Known: true, Epoch: "1", Last: f.last, Next: 1, Upper: 1}
	for _, part := range look.Parts {
		p.Owned = append(p.Owned, part.Slots)
	}
	for _, k := range look.Keys {
		recs := f.ofKey(&k)
		p.Keys = append(p.Keys, outbox.KeyRecords{Records: recs, More: len(recs) >= k.Limit})
	}
	for _, r := range look.Ranges {
		to := min(r.From+int64(r.Limit), r.To, f.last)
		p.Ranges = append(p.Ranges, outbox.Records{Records: f.records(r.From, to), More: to < min(r.To, f.last)})
	}
	return p, nil
}

func (f *feed) record(seq int64) outbox.Record {
	r := outbox.Record{Ref: outbox.Ref{Route: core.DefaultRoute, Seq: seq, Version: 1}}
	if n := int64(len(f.keys)); n > 0 {
		r.Envelope.Key = f.keys[seq%n]
	}
	return r
}

func (f *feed) records(from, to int64) []outbox.Record {
	out := make([]outbox.Record, 0, max(to-from, 0))
	for seq := from + 1; seq <= to; seq++ {
		out = append(out, f.record(seq))
	}
	return out
}

func (f *feed) ofKey(k *outbox.KeyRange) (out []outbox.Record) {
	n := int64(len(f.keys))
	seq := k.From + 1
	for f.keys[seq%n] != k.Key {
		seq++
	}
	for ; seq <= k.To && len(out) < k.Limit; seq += n {
		out = append(out, f.record(seq))
	}
	return out
}

func (*feed) Take(context.Context, outbox.Session, outbox.Want) ([]outbox.Taken, error) {
	return nil, nil
}

func (*feed) GiveUp(context.Context, outbox.Session, outbox.Owned, []outbox.Ref) (bool, error) {
	return true, nil
}

func (*feed) Due(context.Context, outbox.Session, []outbox.Part, int) (outbox.DuePage, error) {
	return outbox.DuePage{NextIn: -1}, nil
}

func (f *feed) Settle(_ context.Context, _ outbox.Session, o []outbox.Outcome) core.Results {
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
			f := &feed{last: int64(b.N), settled: make(chan int, 64)}
			if keyed {
				f.keys = benchKeys
			}
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
