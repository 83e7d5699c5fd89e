package dashboard

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/obs"
)

const (
	freshFor = 2 * time.Second
	keep     = 10 * time.Minute
)

// state is what all viewers of the overview share.
type state struct {
	mu      sync.Mutex
	at      time.Time
	looks   []lookOf // one for each outbox
	watches []watch  // the same
	parked  []parkedOf
	samples []sample
}

// lookOf is what is known of an outbox.
type lookOf struct {
	Name        string
	Counts      []admin.Count
	Err         string
	Health      waybill.Health
	Running     bool // a relay of this process serves it
	Members     []memberRow
	More        string          // how many are not shown
	Served      map[string]bool // routes that some member serves; nil = unknown
	NoHeartbeat string          // why the members are unknown
}

// known are counts that were read already.
type known struct {
	counts []admin.Count
	err    error
}

func (k *known) Counts(context.Context) ([]admin.Count, error) { return k.counts, k.err }

// parkedOf is what is known of a queue.
type parkedOf struct {
	Name  string
	Depth int
	Err   string
}

// sample are the numbers of the telemetry at one time.
type sample struct {
	at      time.Time
	sums    map[string]float64 // counters over all their attributes; "name status" for one status
	waiting float64
	mark    string  // of waiting, if it is not exact
	gone    float64 // given up
	age     float64
	buckets map[string]histogram
}

type histogram struct {
	bounds []float64
	counts []uint64
	n      uint64
}

// look asks the stores, unless their answers are less than two seconds old, and returns the latest answers.
func (d *Dashboard) look(ctx context.Context) (looks []lookOf, parked []parkedOf, samples []sample) {
	d.state.mu.Lock()
	defer d.state.mu.Unlock()
	if now := time.Now(); now.Sub(d.state.at) >= freshFor {
		// The answer is for others, too: it does not end with this viewer.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.timeouts.look)
		defer cancel()
		d.state.looks, d.state.parked = d.ask(ctx, now)
		s := d.measure(ctx, now)
		for i := range d.state.looks {
			s.add(d.state.looks[i].Counts)
		}
		d.state.samples = append(d.state.samples, s)
		for len(d.state.samples) > 0 && now.Sub(d.state.samples[0].at) > keep {
			d.state.samples = d.state.samples[1:]
		}
		d.state.at = time.Now()
	}
	return d.state.looks, d.state.parked, append([]sample(nil), d.state.samples...)
}

// ask asks all outboxes and queues at once.
func (d *Dashboard) ask(ctx context.Context, now time.Time) ([]lookOf, []parkedOf) {
	looks, parked := make([]lookOf, len(d.opts.Outboxes)), make([]parkedOf, len(d.opts.Queues))
	var wg sync.WaitGroup
	for i := range d.opts.Outboxes {
		wg.Go(func() {
			looks[i] = d.opts.Outboxes[i].look(ctx, &d.state.watches[i], now)
		})
	}
	for i := range d.opts.Queues {
		wg.Go(func() {
			q := &d.opts.Queues[i]
			n, err := q.Parked.ParkedDepth(ctx, q.Name)
			parked[i] = parkedOf{Name: q.Name, Depth: n}
			if err != nil {
				parked[i].Err = core.ErrorText(err)
			}
		})
	}
	wg.Wait()
	return looks, parked
}

// look asks one outbox. The counts for the health of its relay come from the same answers.
func (b *Outbox) look(ctx context.Context, w *watch, now time.Time) lookOf {
	l := lookOf{Name: b.Name, Running: b.Relay != nil}
	var counter admin.Counter
	if c, ok := core.As[admin.Counter](b.Store); ok {
		counts, err := c.Counts(ctx)
		counter = &known{counts, err}
		if l.Counts = counts; err != nil {
			l.Err = core.ErrorText(err)
		}
	}
	if b.Relay != nil {
		l.Health = b.Relay.HealthWith(ctx, counter)
	}
	w.look(ctx, b.Store, now)
	if l.Members, l.NoHeartbeat = w.rows(now), w.err; w.err == "" {
		l.Served = w.served()
	}
	if more := len(l.Members) - maxMembers; more > 0 {
		l.Members, l.More = l.Members[:maxMembers], "And "+count(int64(more))+" more."
	}
	return l
}

func (s *sample) add(counts []admin.Count) {
	for i := range counts {
		c := &counts[i]
		if c.State == core.StateAbandoned {
			s.gone += float64(c.N)
		}
		if c.State.Terminal() {
			continue
		}
		s.waiting += float64(c.N)
		s.mark = about(s.mark, c)
		s.age = max(s.age, c.Oldest.Seconds())
	}
}

// measure reads the telemetry of this process.
func (d *Dashboard) measure(ctx context.Context, now time.Time) sample {
	s := sample{at: now, sums: map[string]float64{}, buckets: map[string]histogram{}}
	if d.opts.Metrics == nil {
		return s
	}
	var all metricdata.ResourceMetrics
	if err := d.opts.Metrics.Collect(obs.WithoutStores(ctx), &all); err != nil {
		return s // an instrument that failed has said so in the log
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					s.sums[m.Name] += float64(p.Value)
					if status, ok := p.Attributes.Value("status"); ok {
						s.sums[m.Name+" "+status.AsString()] += float64(p.Value)
					}
				}
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					s.sums[m.Name] += p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					s.buckets[m.Name] = s.buckets[m.Name].plus(p.Bounds, p.BucketCounts)
				}
			}
		}
	}
	return s
}

func (h histogram) plus(bounds []float64, counts []uint64) histogram {
	if h.counts == nil {
		h = histogram{bounds: bounds, counts: make([]uint64, len(counts))}
	}
	for i := range min(len(counts), len(h.counts)) {
		h.counts[i] += counts[i]
		h.n += counts[i]
	}
	return h
}

// quantile returns the upper bound of the bucket that has the quantile q of the values since old; 0 if there is none.
func (h histogram) quantile(old histogram, q float64) float64 {
	if h.n <= old.n {
		return 0
	}
	var sum uint64
	for i, n := range h.counts {
		if sum += n; i < len(old.counts) {
			sum -= old.counts[i]
		}
		if float64(sum) >= q*float64(h.n-old.n) {
			return h.bounds[min(i, len(h.bounds)-1)]
		}
	}
	return h.bounds[len(h.bounds)-1]
}

// rates returns the rate per second of a total that grows from sample to sample.
func rates(samples []sample, total func(*sample) float64) []float64 {
	var out []float64
	for i := 1; i < len(samples); i++ {
		seconds := samples[i].at.Sub(samples[i-1].at).Seconds()
		out = append(out, max((total(&samples[i])-total(&samples[i-1]))/seconds, 0))
	}
	return out
}

// sum returns a function that adds counters.
func sum(names ...string) func(*sample) float64 {
	return func(s *sample) (total float64) {
		for _, name := range names {
			total += s.sums[name]
		}
		return total
	}
}

// staged is what was published, still waits, or was given up.
func staged(s *sample) float64 { return s.sums["waybill.relay.published"] + s.waiting + s.gone }

func series(samples []sample, of func(*sample) float64) []float64 {
	out := make([]float64, len(samples))
	for i := range samples {
		out[i] = of(&samples[i])
	}
	return out
}
