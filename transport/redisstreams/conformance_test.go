package redisstreams_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// TR-04, CO-14, CO-17, CO-21, OR-01.
func TestConformance(t *testing.T) {
	t.Parallel()
	var harnesses []func(*testing.T) transporttest.Harness
	for range 4 {
		server := testenv.OwnRedis(t, testenv.RedisOptions{})
		proxy := testenv.NewProxy(t, server.Addr())
		harnesses = append(harnesses, func(t *testing.T) transporttest.Harness {
			t.Helper()
			opts := prepared(redisstreams.Options{HoldFor: 4 * time.Second, Timeout: patience.For(3 * time.Second), PublishTimeout: patience.For(6 * time.Second)})
			bus := dial(t, proxy.URL(server.URL()), opts)
			h := harness(t, bus, server.URL(), opts)
			h.Restart = server.Restart // SIGKILL
			h.Refuse, h.SizeLimit = refuse(server), "proto-max-bulk-len"
			h.Cut = func(context.Context) (func() error, error) {
				proxy.Blackhole(testenv.Up | testenv.Down)
				proxy.Cut()
				return func() error { proxy.Heal(); return nil }, nil
			}
			return h
		})
	}
	transporttest.RunSpread(t, harnesses...)
}

// refuse fills the server's memory, which leaves room for settles, or takes the replicas that a write needs, or lowers
// the limit of an argument as far as the server lets it.
func refuse(server *testenv.RedisServer) func(context.Context, transporttest.Refused) (func() error, error) {
	return func(ctx context.Context, what transporttest.Refused) (func() error, error) {
		change := map[transporttest.Refused]struct{ setting, to, back string }{
			transporttest.RefuseMessages: {"maxmemory", "1", "0"},
			transporttest.RefuseAll:      {"min-replicas-to-write", "1", "0"},
			transporttest.RefuseLarge:    {"proto-max-bulk-len", "1048576", "536870912"},
		}[what]
		opts, err := redis.ParseURL(server.URL())
		if err != nil {
			return nil, err
		}
		set := func(to string) error {
			client := redis.NewClient(opts)
			defer func() { _ = client.Close() }()
			return client.ConfigSet(context.WithoutCancel(ctx), change.setting, to).Err()
		}
		return func() error { return set(change.back) }, set(change.to)
	}
}

// TR-08, TR-04: three nodes, a client of the caller's.
func TestConformanceCluster(t *testing.T) {
	tier.Nightly(t, "the suite again, on three nodes: 20 s of waiting")
	t.Parallel()
	nodes := testenv.OwnRedisCluster(t, 3)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
	}
	harnesses := make([]func(*testing.T) transporttest.Harness, 3)
	for i := range harnesses {
		harnesses[i] = func(t *testing.T) transporttest.Harness {
			t.Helper()
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, MaxRetries: -1})
			t.Cleanup(func() {
				if err := client.Ping(context.Background()).Err(); err != nil {
					t.Errorf("the transport closed a client that is not its own: %v", err)
				}
				_ = client.Close()
			})
			opts := prepared(redisstreams.Options{HoldFor: 4 * time.Second})
			bus, err := redisstreams.New(client, opts)
			if err != nil {
				t.Fatal(err)
			}
			closeLater(t, bus)
			h := transporttest.Of(bus)
			h.Parked = parkedOf(bus)
			h.Reopen = func(context.Context) (core.Subscriber, error) {
				second, err := redisstreams.New(client, opts)
				if err == nil {
					closeLater(t, second)
				}
				return second, err
			}
			return h
		}
	}
	transporttest.RunSpread(t, harnesses...)
}

func harness(t *testing.T, bus *redisstreams.Transport, url string, opts redisstreams.Options) transporttest.Harness {
	t.Helper()
	h := transporttest.Of(bus)
	h.Parked = parkedOf(bus)
	h.Reopen = func(context.Context) (core.Subscriber, error) { return dial(t, url, opts), nil }
	h.ReservedNames = []string{"data", "ce_x", "header_a", "*", "NOMKSTREAM"}
	return h
}

func parkedOf(bus *redisstreams.Transport) func(context.Context, string) ([]transporttest.Parked, error) {
	return func(ctx context.Context, queue string) ([]transporttest.Parked, error) {
		list, err := bus.ListParked(ctx, queue, admin.ParkedFilter{}, 1000)
		if err != nil {
			return nil, err
		}
		var out []transporttest.Parked
		for _, p := range list {
			one, err := bus.InspectParked(ctx, queue, admin.ParkedFilter{Positions: []int{p.Position}})
			if err != nil {
				return nil, err
			}
			out = append(out, transporttest.Parked{Envelope: one.Envelope, Reason: p.Reason, Err: p.Error})
		}
		return out, nil
	}
}
