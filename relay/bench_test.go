package relay_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

// feed is a store that always has a full page, and forgets a settled record: the benchmark measures the relay alone.
type feed struct {
	mu      sync.Mutex
	member  core.Member
	owner   core.Session
	last    int64
	keys    []string
	settled chan int
}

func (*feed) Traits() core.StoreTraits { return core.StoreTraits{SessionFence: true} }

func (f *feed) Heartbeat(_ context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.member = m.Self
	for _, mv := range m.Transfers {
		f.owner = mv.To
	}
	u := core.PartitionState{Partition: core.Partition{Route: waybill.DefaultRoute, To: core.NumSlots}, Owner: f.owner}
	return core.Membership{IsMember: true, StoreEpoch: "1", Members: []core.Member{f.member}, Partitions: []core.PartitionState{u}}, nil
}

func (f *feed) Read(_ context.Context, _ core.Session, request core.ReadRequest) (core.ReadResult, error) {
	p := core.ReadResult{IsMember: true, StoreEpoch: "1", LastSeq: f.last, SnapshotXmax: 1, LastSeqXmax: 1}
	for _, part := range request.Slots {
		p.Owned = append(p.Owned, part.Slots)
	}
	for _, k := range request.Keys {
		recs := f.ofKey(&k)
		p.Keys = append(p.Keys, core.KeyRecords{Records: recs, More: len(recs) >= k.Limit})
	}
	for _, r := range request.Ranges {
		to := min(r.AfterSeq+int64(r.Limit), r.UpToSeq, f.last)
		p.Ranges = append(p.Ranges, core.Records{Records: f.records(r.AfterSeq, to), More: to < min(r.UpToSeq, f.last)})
	}
	return p, nil
}

func (f *feed) record(seq int64) core.Record {
	r := core.Record{Ref: core.Ref{Route: waybill.DefaultRoute, Seq: seq, Version: 1}}
	if n := int64(len(f.keys)); n > 0 {
		r.Envelope.Key = f.keys[seq%n]
	}
	return r
}

func (f *feed) records(from, to int64) []core.Record {
	out := make([]core.Record, 0, max(to-from, 0))
	for seq := from + 1; seq <= to; seq++ {
		out = append(out, f.record(seq))
	}
	return out
}

func (f *feed) ofKey(k *core.KeyRange) (out []core.Record) {
	n := int64(len(f.keys))
	seq := k.AfterSeq + 1
	for f.keys[seq%n] != k.Key {
		seq++
	}
	for ; seq <= k.UpToSeq && len(out) < k.Limit; seq += n {
		out = append(out, f.record(seq))
	}
	return out
}

func (*feed) Hold(context.Context, core.Session, core.HoldRequest) ([]core.HoldResult, error) {
	return nil, nil
}

func (*feed) ReleasePartition(context.Context, core.Session, core.PartitionState, []core.Ref) (bool, error) {
	return true, nil
}

func (*feed) Due(context.Context, core.Session, []core.RouteSlots, int) (core.DueResult, error) {
	return core.DueResult{NextIn: -1}, nil
}

func (f *feed) Settle(_ context.Context, _ core.Session, o []core.Outcome) core.Results {
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

func (sink) Publish(_ context.Context, b []waybill.Envelope) core.Results {
	return make(core.Results, len(b))
}

// RL-11: the relay's own cost of a message, with a store and a broker that cost nothing.
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
