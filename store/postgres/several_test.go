package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// One process serves two tenants with a database each, and a relay for each, named after both ends.
func Example_severalDatabases() {
	serve := func(ctx context.Context, bus core.Publisher, tenants map[string]*pgxpool.Pool) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var wg sync.WaitGroup
		for tenant, pool := range tenants {
			o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/" + tenant})
			if err != nil {
				return err
			}
			r, err := relay.New(o, bus, relay.Options{Name: tenant + " to shop"})
			if err != nil {
				return err
			}
			wg.Go(func() {
				// a misconfiguration; an outage of one database does not end it
				if err := r.Run(ctx); err != nil {
					cancel(fmt.Errorf("relay of %s: %w", tenant, err))
				}
			})
		}
		wg.Wait()
		return context.Cause(ctx)
	}
	_ = serve
}

// traffic counts the published messages, by source.
type traffic struct {
	core.Publisher
	mu sync.Mutex
	n  map[string]int
}

func (a *traffic) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	res := a.Publisher.Publish(ctx, batch)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range batch {
		if res[i] == nil {
			a.n[batch[i].Source]++
		}
	}
	return res
}

func (a *traffic) of(source string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[source]
}

// DB-19: two databases in one process, a relay each, to one bus. They are told apart, and when one database is
// away the other is served.
func TestSeveralDatabases(t *testing.T) {
	t.Parallel()
	mem, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "all", Bindings: []string{"#"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mem.Close(context.WithoutCancel(t.Context())) }()
	bus := &traffic{Publisher: mem, n: map[string]int{}}
	type tenant struct {
		name  string
		proxy *testenv.Proxy
		pool  *pgxpool.Pool // past the proxy
		store *postgres.Outbox
	}
	var tenants []*tenant
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for _, name := range []string{"tenant-1", "tenant-2"} {
		pg := testenv.Postgres(t)
		x := &tenant{name: name, pool: openPool(t, pg.DSN)}
		x.proxy = testenv.NewProxy(t, x.pool.Config().ConnConfig.Host+fmt.Sprint(":", x.pool.Config().ConnConfig.Port))
		opts := postgres.Options{Source: "/" + name, Retention: waybill.Retention{Published: time.Hour}}
		x.store = outboxOn(t, x.pool, opts)
		through := outboxOn(t, openPool(t, x.proxy.URL(pg.DSN)), opts)
		r, err := relay.New(through, bus, relay.Options{Name: name + " to shop", PollMin: 10 * time.Millisecond, PollMax: 200 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := r.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("the relay of %s: %v", name, err)
			}
		})
		tenants = append(tenants, x)
	}
	send := func(x *tenant, n int) {
		t.Helper()
		for range n {
			stage(t, x.pool, x.store, message(waybill.Key("k")))
		}
	}
	arrived := func(x *tenant, n int) {
		t.Helper()
		patience.Moving(t, fmt.Sprintf("%d messages of %s come", n, x.name), func() (int, bool) { at := bus.of("/" + x.name); return at, at >= n })
	}
	one, two := tenants[0], tenants[1]
	send(one, 20)
	send(two, 30)
	arrived(one, 20)
	arrived(two, 30)
	two.proxy.Refuse()
	two.proxy.Cut()
	send(one, 10)
	send(two, 10)
	arrived(one, 30)
	if n := bus.of("/tenant-2"); n >= 40 {
		t.Errorf("%d messages of a database that is away arrived", n-30)
	}
	if err := two.proxy.Accept(); err != nil {
		t.Fatal(err)
	}
	arrived(two, 40)
	for _, x := range tenants {
		r, err := x.store.Heartbeat(t.Context(), core.HeartbeatRequest{})
		if err != nil || len(r.Members) != 1 || r.Members[0].Name != x.name+" to shop" {
			t.Errorf("the members of %s are %+v, %v", x.name, r.Members, err)
		}
	}
}
