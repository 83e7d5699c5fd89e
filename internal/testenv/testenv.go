package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/waybill-go/waybill/internal/tier"
)

// TB is what testenv needs of a *testing.T, *testing.B or *testing.F.
type TB interface {
	Helper()
	Cleanup(fn func())
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

// Background is the function under which every goroutine runs that lives as long as the process.
const Background = "github.com/waybill-go/waybill/internal/testenv.background"

// IdleMongoDB is what reads from a connection that stands in for MongoDB: idle ones live as long as the process, and
// the driver of Postgres leaves a reader behind on one that was slow to write.
const IdleMongoDB = "github.com/waybill-go/waybill/internal/testenv/mongoproxy.upstream.Read"

// ErrUnavailable says that a server can neither be found nor started on this machine. The message says what to do about
// it.
var ErrUnavailable = errors.New("server not available")

// answerTime is how long a server that a variable names may take for a first answer.
var answerTime = time.Minute

// answers runs ask, and says which server it was that did not answer.
func answers[T any](ctx context.Context, variable string, ask func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	v, err := ask(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("waybill/testenv: the server of %s does not answer within %s: %w (%w)", variable, answerTime, ctx.Err(), err)
	}
	return v, err
}

// cleanupTimeout bounds what runs after a test, when the test's context is already cancelled.
const cleanupTimeout = 30 * time.Second

// Postgres gives the test a fresh, empty database on the shared PostgreSQL server, and drops it at the end of the test.
func Postgres(tb TB) *PG {
	tb.Helper()
	return opened(tb, OpenPostgres, (*PG).Close)
}

// RabbitMQ gives the test a fresh virtual host on the shared broker, and deletes it at the end of the test.
func RabbitMQ(tb TB) *MQ {
	tb.Helper()
	return opened(tb, OpenRabbitMQ, (*MQ).Close)
}

// MongoDB gives the test a database on the server of WAYBILL_TEST_MONGODB or on the shared FerretDB, and drops it at
// the end of the test.
func MongoDB(tb TB) *Mongo {
	tb.Helper()
	return opened(tb, OpenMongoDB, (*Mongo).Close)
}

// OwnPostgres starts a private PostgreSQL server for this test alone, and removes it at the end of the test.
func OwnPostgres(tb TB, opts PostgresOptions) *PostgresServer {
	tb.Helper()
	return own(tb, func(ctx context.Context) (*PostgresServer, error) { return StartPostgres(ctx, opts) })
}

// OwnRabbitMQ starts a private broker for this test alone (3 to 9 s), and removes it at the end of the test.
func OwnRabbitMQ(tb TB, opts RabbitMQOptions) *RabbitMQServer {
	tb.Helper()
	return own(tb, func(ctx context.Context) (*RabbitMQServer, error) { return StartRabbitMQ(ctx, opts) })
}

// NewProxy starts a fault proxy before the address upstream (host:port), and closes it at the end of the test.
func NewProxy(tb TB, upstream string) *Proxy {
	tb.Helper()
	p, err := StartProxy(upstream)
	if err != nil {
		tb.Fatalf("%v", err)
		return nil
	}
	tb.Cleanup(p.Close)
	return p
}

// NewTLS makes throwaway certificates for this test; see [MakeTLS].
func NewTLS(tb TB) *TLS {
	tb.Helper()
	dir, err := newDir(certificates, nil)
	if err != nil {
		tb.Fatalf("%v", err)
		return nil
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	t, err := MakeTLS(dir)
	if err != nil {
		tb.Fatalf("%v", err)
		return nil
	}
	return t
}

// opened returns what open returns, and closes it at the end of the test.
func opened[T any](tb TB, open func(ctx context.Context) (T, error), stop func(T, context.Context) error) T {
	tb.Helper()
	v, err := open(tb.Context())
	if err != nil {
		unavailable(tb, err)
		return *new(T)
	}
	closeAfter(tb, func(ctx context.Context) error { return stop(v, ctx) })
	return v
}

// own returns the server that start returns, and removes it at the end of the test.
func own[S interface{ Close() error }](tb TB, start func(ctx context.Context) (S, error)) S {
	tb.Helper()
	return opened(tb, start, func(s S, _ context.Context) error { return s.Close() })
}

func closeAfter(tb TB, stop func(context.Context) error) {
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := stop(ctx); err != nil {
			tb.Logf("%v", err)
		}
	})
}

// unavailable ends the test as [tier.Missing] does if the server cannot be had here. Any other error fails it.
func unavailable(tb TB, err error) {
	tb.Helper()
	if errors.Is(err, ErrUnavailable) {
		tier.Missing(tb, "%v", err)
		return
	}
	tb.Fatalf("%v", err)
}

// poll calls check until it returns nil, every few milliseconds. It gives up when ctx ends or stop is closed, with the
// last error.
func poll(ctx context.Context, stop <-chan struct{}, check func(context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-stop:
			return err
		case <-tick.C:
		}
	}
}
