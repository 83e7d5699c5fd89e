package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

type options struct {
	run, chaos         time.Duration
	postgres, rabbitmq string
	rate               int
	seed               uint64
}

// demo runs all roles as processes, breaks things if asked, waits until everything has settled, and verifies.
func demo(ctx context.Context, o options) (err error) {
	if o.chaos > 0 && (o.postgres != "" || o.rabbitmq != "") {
		return errors.New("-chaos kills servers, so it uses private ones: leave out -postgres and -rabbitmq")
	}
	started := time.Now()
	env, err := openServers(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.close()) }()
	if err := prepare(ctx, env.direct); err != nil {
		return err
	}

	var t tally
	crew := newCrew(env.proxied, &t)
	workers := []string{"relay", "relay", "consumer", "consumer", "audit"}
	for _, role := range workers {
		if err := crew.start(role); err != nil {
			return errors.Join(err, crew.stopAll())
		}
	}
	if err := crew.start("producer"); err != nil {
		return errors.Join(err, crew.stopAll())
	}
	if err := act(ctx, o, env, crew, &t); err != nil {
		return errors.Join(err, crew.stopAll())
	}
	pool, err := env.direct.pool(ctx)
	if err != nil {
		return errors.Join(err, crew.stopAll())
	}
	defer pool.Close()
	err = errors.Join(crew.stop("producer"), settled(ctx, pool, 45*time.Second), crew.stopAll())
	if err != nil {
		return err
	}
	f, err := countFigures(ctx, pool)
	if err != nil {
		return err
	}
	return f.report(&t, time.Since(started))
}

// act lets the producer work for the time asked for, with chaos or without, and shows progress.
func act(ctx context.Context, o options, env *servers, c *crew, t *tally) error {
	length := o.run
	if o.chaos > 0 {
		length = o.chaos
		fmt.Printf("Placing orders for %s while everything breaks (-seed %d).\n", length, o.seed)
	} else {
		fmt.Printf("Placing orders for %s.\n", length)
	}
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return nil
			case <-tick.C:
				fmt.Printf("  %6d published · %6d delivered · %d duplicates suppressed · %d kills · %d faults\n",
					t.published.Load(), t.delivered.Load(), t.duplicates.Load(), t.kills.Load(), t.faults.Load())
			}
		}
	})
	if o.chaos > 0 {
		g.Go(func() error { return wreak(ctx, rand.New(rand.NewPCG(o.seed, 0)), env, c, t) })
	}
	return g.Wait()
}

// wreak breaks one thing after the other until ctx ends, and leaves everything in working order.
func wreak(ctx context.Context, rnd *rand.Rand, env *servers, c *crew, t *tally) error {
	restart := context.WithoutCancel(ctx) // what was killed is started again, also at the end
	for wait(ctx, 2*time.Second) {        // a quorum queue needs that long after its declaration to survive a kill
		what := rnd.IntN(12)
		// In its first seconds every run does the gravest things once.
		if n := t.kills.Load() + t.faults.Load(); n < 4 {
			what = [...]int{0, 8, 4, 6}[n]
		}
		err := error(nil)
		switch what {
		case 0, 1, 2, 3:
			c.kill("relay")
		case 4, 5:
			c.kill("consumer")
		case 6, 7:
			t.faults.Add(1)
			env.pg.Kill()
			wait(ctx, time.Duration(rnd.Int64N(int64(time.Second))))
			err = env.pg.Restart(restart)
		case 8:
			t.faults.Add(1)
			env.mq.Kill()
			wait(ctx, time.Duration(rnd.Int64N(int64(2*time.Second))))
			err = env.mq.Restart(restart)
		case 9, 10:
			t.faults.Add(1)
			p := env.proxies[rnd.IntN(len(env.proxies))]
			p.Cut()
		case 11:
			t.faults.Add(1)
			p := env.proxies[rnd.IntN(len(env.proxies))]
			p.Blackhole(testenv.Up << rnd.IntN(2))
			wait(ctx, 500*time.Millisecond+time.Duration(rnd.Int64N(int64(3*time.Second))))
			p.Heal()
		}
		if err != nil {
			return err
		}
		wait(ctx, time.Duration(rnd.Int64N(int64(1500*time.Millisecond))))
	}
	return nil
}

// wait reports whether d passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// servers are the database and the broker, and the proxies through which the roles reach them.
type servers struct {
	direct, proxied config
	pg              *testenv.PostgresServer
	mq              *testenv.RabbitMQServer
	proxies         []*testenv.Proxy
}

func openServers(ctx context.Context, o options) (*servers, error) {
	s := &servers{}
	s.direct = config{postgres: o.postgres, rabbitmq: o.rabbitmq, rate: o.rate}
	g, gctx := errgroup.WithContext(ctx)
	if o.postgres == "" {
		g.Go(func() (err error) {
			if s.pg, err = testenv.StartPostgres(gctx, testenv.PostgresOptions{}); err != nil {
				return err
			}
			s.direct.postgres = s.pg.DSN("postgres")
			return nil
		})
	}
	if o.rabbitmq == "" {
		g.Go(func() (err error) {
			if s.mq, err = testenv.StartRabbitMQ(gctx, testenv.RabbitMQOptions{}); err != nil {
				return err
			}
			s.direct.rabbitmq = s.mq.AMQPURL("/")
			return nil
		})
	}
	err := g.Wait()
	s.proxied = s.direct
	if err == nil && o.chaos > 0 {
		err = s.addProxies()
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *servers) addProxies() error {
	for _, p := range []struct {
		upstream string
		url      *string
	}{{s.pg.Addr(), &s.proxied.postgres}, {s.mq.Addr(), &s.proxied.rabbitmq}} {
		proxy, err := testenv.StartProxy(p.upstream)
		if err != nil {
			return err
		}
		s.proxies = append(s.proxies, proxy)
		*p.url = proxy.URL(*p.url)
	}
	return nil
}

func (s *servers) close() error {
	for _, p := range s.proxies {
		p.Close()
	}
	var err error
	if s.pg != nil {
		err = s.pg.Close()
	}
	if s.mq != nil {
		err = errors.Join(err, s.mq.Close())
	}
	return err
}

// prepare is what a deployment does once: migrate the database, create the business tables, declare queues.
func prepare(ctx context.Context, cfg config) error {
	pool, err := cfg.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	outbox, err := cfg.outbox(pool)
	if err != nil {
		return err
	}
	marks, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		return err
	}
	if err := errors.Join(outbox.Migrate(ctx), marks.Migrate(ctx)); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, businessTables); err != nil {
		return fmt.Errorf("create the business tables (the database must be empty): %w", err)
	}
	bus, err := cfg.bus(ctx)
	if err != nil {
		return err
	}
	for _, sub := range []waybill.Subscription{billingQueue, auditQueue} {
		in, err := bus.Subscribe(ctx, core.SubscriptionOf(&sub))
		if err == nil {
			err = in.Close(ctx)
		}
		if err != nil {
			return errors.Join(err, bus.Close(ctx))
		}
	}
	return bus.Close(ctx)
}
