package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

// emptyEvery is how often the stores are asked whether something waits.
const emptyEvery = 200 * time.Millisecond

// errEmpty says that nothing waits any more.
var errEmpty = errors.New("nothing waits")

// drainAll returns when nothing waits on the routes of the relays, with errEmpty; or when the time is over, with what
// waits; or when ctx ends.
func (d *daemon) drainAll(ctx context.Context) error {
	var over <-chan time.Time
	if d.most > 0 {
		limit := time.NewTimer(d.most)
		defer limit.Stop()
		over = limit.C
	}
	tick := time.NewTicker(emptyEvery)
	defer tick.Stop()
	left := "the stores have not answered"
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over:
			return withCode(ExitFindings, "not empty after %s: %s", d.most, left)
		case <-tick.C:
		}
		waits, err := d.fleet.waiting(ctx, d.c.timeout)
		switch {
		case errors.Is(err, waybill.ErrUnsupported):
			return &exit{ExitUsage, err}
		case err != nil:
			left = core.ErrorText(err)
		case len(waits) == 0:
			return errEmpty
		default:
			left = strings.Join(waits, "; ")
		}
	}
}

// waiting tells what waits on the routes of all relays; nothing if nothing does.
func (f *fleet) waiting(ctx context.Context, timeout time.Duration) ([]string, error) {
	var texts []string
	for _, name := range sortedKeys(f.relays) {
		if f.stores[f.ends[name].store].Outboxes != nil {
			return nil, fmt.Errorf("--until-empty: store %s has many outboxes, which are not counted (%w)", f.ends[name].store, waybill.ErrUnsupported)
		}
		counter, ok := core.As[admin.Counter](f.stores[f.ends[name].store].Outbox)
		if !ok {
			return nil, fmt.Errorf("--until-empty: store %s cannot count its records (%w)", f.ends[name].store, waybill.ErrUnsupported)
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		counts, err := counter.Counts(ctx)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("relays.%s: %w", name, err)
		}
		served := map[string]bool{}
		for i := range f.options[name].Routes {
			for _, route := range storedRoutes(&f.options[name].Routes[i]) {
				served[route] = true
			}
		}
		for i := range counts {
			if n := &counts[i]; (n.N > 0 || n.AtLeast) && !n.State.Terminal() && served[n.Route] {
				texts = append(texts, fmt.Sprintf("relays.%s: %s%d %s on route %s", name, about(n.Estimated, n.AtLeast), n.N, n.State, n.Route))
			}
		}
	}
	return texts, nil
}

// storedRoutes are the names by which a store knows a route: itself, its sub-routes, and their lanes.
func storedRoutes(r *relay.Route) []string {
	name := r.Name
	name = cmp.Or(name, waybill.DefaultRoute)
	names := []string{name}
	for i := range r.SubRoutes {
		names = append(names, waybill.NthSubRoute(name, i))
	}
	if r.Lanes {
		for _, base := range names {
			names = append(names, waybill.LaneRoute(base, waybill.LaneHigh), waybill.LaneRoute(base, waybill.LaneLow))
		}
	}
	return names
}
