package postgres_test

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// queryExecModes are those that a pool can be set to, poolers' ones included.
var queryExecModes = []string{"cache_statement", "cache_describe", "exec", "simple_protocol"}

// newSinglePool returns a pool of one connection, and counts its messages to the server.
func newSinglePool(t *testing.T, params string) (*pgxpool.Pool, *atomic.Int64) {
	t.Helper()
	sent := new(atomic.Int64)
	pool := openPoolWith(t, withParam(testenv.Postgres(t).DSN, params), func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return sharedtest.CountedConn{Conn: conn, Writes: sent}, err
		}
		cfg.MaxConns = 1
		cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	})
	return pool, sent
}

// ST-02 DB-02: a transaction that stages through the unit of work makes no more round trips than one that does not,
// and fewer than one by hand, in every mode of the pool.
func TestUnitOfWorkRoundTrips(t *testing.T) {
	t.Parallel()
	for _, mode := range queryExecModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool, sent := newSinglePool(t, "default_query_exec_mode="+mode)
			o := outboxOn(t, pool, postgres.Options{})
			unit := o.UnitOfWork()
			exec(t, pool, "CREATE TABLE shops (name text)")
			trips := func(msgs ...waybill.Message) int64 {
				t.Helper()
				before := sent.Load()
				err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, "INSERT INTO shops VALUES ($1)", "a shop"); err != nil {
						return err
					}
					return unit.Stage(ctx, msgs...)
				})
				if err != nil {
					t.Fatal(err)
				}
				return sent.Load() - before
			}
			one, several := message(waybill.Key("k"), waybill.Header("a", "b'\\c")), []waybill.Message{message(), message(waybill.Delay(time.Hour)), message()}
			trips(one) // seeds the clock and prepares the statements
			trips(several...)
			if without := trips(); without != 2 {
				t.Errorf("%d round trips without staging, want begin and insert, commit", without)
			}
			if n := trips(one); n != 2 {
				t.Errorf("%d round trips with a message, want 2", n)
			}
			if n := trips(several...); n != 2 {
				t.Errorf("%d round trips with several messages, want 2", n)
			}
			if n := trips(one, message(waybill.DedupeKey("live"))); mode != "cache_statement" && mode != "cache_describe" && n != 3 {
				t.Errorf("%d round trips with a dedupe key, want 3", n)
			}
			if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); n != 10 {
				t.Errorf("%d messages, want 10", n)
			}
			if c := holdNext(t, o, want(100)); len(c.Records) != 8 || c.Records[0].Envelope.Headers["a"] != "b'\\c" {
				t.Errorf("held %d: %+v", len(c.Records), c.Records)
			}
		})
	}
}

// The mark goes with the BEGIN: a message costs a round trip less than its statements, and a duplicate two altogether.
func TestInboxRoundTrips(t *testing.T) {
	t.Parallel()
	for _, mode := range queryExecModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool, sent := newSinglePool(t, "default_query_exec_mode="+mode)
			in, err := postgres.NewInbox(pool, postgres.InboxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := in.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			exec(t, pool, `CREATE TEMP TABLE effects (name text NOT NULL)`)
			effect := func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, "an effect")
				return err
			}
			trips := func(do func() error) int64 {
				t.Helper()
				before := sent.Load()
				if err := do(); err != nil {
					t.Fatal(err)
				}
				return sent.Load() - before
			}
			one := func(id string) func() error {
				return func() error { _, err := in.Do(t.Context(), key(id), effect); return err }
			}
			batch := func(ids ...string) func() error {
				keys := make([]core.InboxKey, len(ids))
				for i, id := range ids {
					keys[i] = key(id)
				}
				return func() error {
					_, err := in.DoBatch(t.Context(), keys, func(ctx context.Context, tx pgx.Tx, _ []int) error { return effect(ctx, tx) })
					return err
				}
			}
			trips(one("0")) // prepares the statements
			trips(batch("00"))
			for name, tc := range map[string]struct {
				do   func() error
				want int64
			}{
				"a message":             {one("1"), 3},
				"a duplicate":           {one("0"), 2},
				"a batch":               {batch("0", "2", "3"), 3},
				"a batch of duplicates": {batch("0", "00"), 2},
			} {
				if n := trips(tc.do); n != tc.want {
					t.Errorf("%s: %d round trips, want %d", name, n, tc.want)
				}
			}
			if n := queryInt(t, pool, `SELECT count(*) FROM effects`); n != 4 {
				t.Errorf("%d effects, want 4", n)
			}
		})
	}
}

// A relay asks the database little before its first message: where each answer takes 5 ms, that is a tenth of a second.
// The connections of its own come later (TestFirstMessageWaitsForNoPresence). Further connections of the pool are left
// out, since how many it opens depends on the machine; a heartbeat counts that comes meanwhile on a busy one.
func TestRelayStartRoundTrips(t *testing.T) {
	t.Parallel()
	atFirst := make(chan int64, 1)
	pool, sent := newSinglePool(t, "application_name=start")
	o := outboxOn(t, pool, postgres.Options{DisableNotify: true})
	stage(t, pool, o, message(), message(waybill.Key("k")))
	pool.Reset() // it connects anew
	bus := &sharedtest.Publisher{Before: func(context.Context, []waybill.Envelope) error {
		select {
		case atFirst <- sent.Load():
		default:
		}
		return nil
	}}
	r, err := relay.New(o, bus, relay.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	before := sent.Load()
	go func() { ended <- r.Run(ctx) }()
	select {
	case n := <-atFirst:
		if n -= before; n > 25 {
			t.Errorf("%d round trips before the first message, want 25 at most", n)
		}
	case err := <-ended:
		t.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
