package upkeep

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// Gauges are the numbers of a store's records and the age of the oldest due ones.
type Gauges struct {
	records metric.Int64ObservableGauge
	oldest  metric.Float64ObservableGauge
}

// NewGauges returns the gauges of m.
func NewGauges(m metric.Meter) (*Gauges, error) {
	records, err1 := m.Int64ObservableGauge("waybill.relay.records", metric.WithUnit("{record}"), metric.WithDescription("Stored records"))
	oldest, err2 := m.Float64ObservableGauge("waybill.relay.oldest.age", metric.WithUnit("s"), metric.WithDescription("Age of the oldest due record"))
	return &Gauges{records, oldest}, errors.Join(err1, err2)
}

// Observables returns both, for the registration of a callback.
func (g *Gauges) Observables() []metric.Observable { return []metric.Observable{g.records, g.oldest} }

// countTimeout is half of what /metrics, and Prometheus by default, give a scrape.
const countTimeout = 5 * time.Second

// Count asks a store for the numbers of a scrape. It gives up in time, so that the scrape brings all other metrics
// while the database answers late.
func Count(ctx context.Context, c admin.Counter) ([]admin.Count, error) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	return c.Counts(ctx)
}

// series is what a gauge has one value for.
type series struct {
	route string
	state core.State
}

// Observe reports counts, and 0 for the states of routes without records. label returns the attributes of a series.
func (g *Gauges) Observe(o metric.Observer, counts []admin.Count, routes []string, label func(route string, state core.State) metric.ObserveOption) {
	records, oldest := map[series]int64{}, map[series]time.Duration{}
	for _, route := range routes {
		for _, s := range [...]core.State{core.StatePending, core.StateFailed, core.StateAbandoned} {
			records[series{route, s}] = 0
		}
	}
	for i := range counts {
		c := &counts[i]
		k := series{c.Route, c.State}
		records[k] += c.N
		oldest[k] = max(oldest[k], c.Oldest)
	}
	for k, n := range records {
		set := label(k.route, k.state)
		o.ObserveInt64(g.records, n, set)
		if k.state == core.StatePending || k.state == core.StateFailed {
			o.ObserveFloat64(g.oldest, oldest[k].Seconds(), set)
		}
	}
}

// Of returns the counts of routes.
func Of(counts []admin.Count, routes []string) []admin.Count {
	return slices.DeleteFunc(counts, func(c admin.Count) bool { return !slices.Contains(routes, c.Route) })
}
