package table

import (
	"context"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/chance"
	"github.com/waybill-go/waybill/internal/obs"
	"github.com/waybill-go/waybill/internal/sleep"
	"github.com/waybill-go/waybill/internal/upkeep"
)

// upkeeper is what a transport does beside its receivers, while it has any: it shows that the process is there, cleans
// the store, and has the gauges of its queues. Of several processes, relays included, the store elects one to clean.
type upkeeper struct {
	end  context.CancelFunc
	done chan struct{}
}

// startUpkeep begins it if it has not begun. mu is held.
func (t *Transport) startUpkeep() {
	if t.upkeep != nil {
		return
	}
	ctx, cancel := context.WithCancel(t.base)
	u := &upkeeper{end: cancel, done: make(chan struct{})}
	t.upkeep = u
	go func() {
		defer close(u.done)
		if store, ok := core.As[core.Presence](t.store); ok {
			var kept sync.WaitGroup
			kept.Go(func() { t.keepPresence(ctx, store) })
			defer kept.Wait()
		}
		defer t.gauges(ctx)()
		cleaner, ok := core.As[core.Cleaner](t.store)
		if !ok || t.opts.CleanInterval < 0 {
			<-ctx.Done()
			return
		}
		t.clean(ctx, cleaner)
	}()
}

// endUpkeep ends it after the last receiver; the channel is closed when it has ended. mu is held.
func (t *Transport) endUpkeep() <-chan struct{} {
	u := t.upkeep
	if u == nil || len(t.receivers) > 0 {
		return nil
	}
	t.upkeep = nil
	u.end()
	return u.done
}

// clean cleans the store until ctx ends. It begins after a random part of the interval, so that processes that start
// together do not ask in step. While there is more to clean it goes on after a short rest, and keeps the lease.
func (t *Transport) clean(ctx context.Context, cleaner core.Cleaner) {
	interval := t.opts.CleanInterval
	owner := t.opts.Owner + " " + strconv.FormatInt(chance.N(int64(math.MaxInt64)), 36)
	var round upkeep.Round
	for wait := chance.N(interval); sleep.For(ctx, wait) == nil; {
		began := time.Now()
		attempt, cancel := context.WithTimeout(ctx, upkeep.Timeout)
		done, err := cleaner.Clean(attempt, owner, upkeep.Lease(interval))
		cancel()
		round.Add(&done)
		switch {
		case err == nil && done.Leader && done.More:
			wait = upkeep.Rest(time.Since(began))
			continue
		case err != nil && ctx.Err() == nil:
			t.log.Event(ctx, slog.LevelWarn, "table.clean_failed", "cleaning the store failed; trying again later",
				slog.String("error", core.ErrorText(err)))
		}
		round.End(ctx, t.log.Logger, slog.String("event", "table.clean"))
		wait = interval - chance.N(interval/4+1)
	}
}

// gauges registers the gauges of the queues that are received from.
func (t *Transport) gauges(ctx context.Context) (unregister func()) {
	counter, ok := core.As[admin.Counter](t.store)
	if !ok {
		return func() {}
	}
	m := obs.Meter(t.opts.MeterProvider)
	gauges, err := upkeep.NewGauges(m)
	var reg metric.Registration
	if err == nil {
		reg, err = m.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
			return t.observe(ctx, o, counter, gauges)
		}, gauges.Observables()...)
	}
	if err != nil {
		t.log.Event(ctx, slog.LevelWarn, "table.metrics_failed", "no gauges", slog.String("error", core.ErrorText(err)))
		return func() {}
	}
	return func() { _ = reg.Unregister() }
}

func (t *Transport) observe(ctx context.Context, o metric.Observer, counter admin.Counter, gauges *upkeep.Gauges) error {
	var queues []string
	t.mu.Lock()
	for _, r := range t.receivers {
		queues = append(queues, r.queue)
	}
	t.mu.Unlock()
	if len(queues) == 0 || !obs.AsksStores(ctx) {
		return nil
	}
	counts, err := upkeep.Count(ctx, counter)
	if err != nil {
		return err
	}
	gauges.Observe(o, upkeep.Of(counts, queues), queues, func(route string, state core.State) metric.ObserveOption {
		return metric.WithAttributeSet(attribute.NewSet(attribute.String("route", route), attribute.String("state", state.String())))
	})
	return nil
}
