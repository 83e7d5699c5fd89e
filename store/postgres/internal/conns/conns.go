package conns

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Source gives connections.
type Source interface {
	// Use runs fn with a connection of the pool that nobody else uses meanwhile.
	Use(ctx context.Context, fn func(conn *pgx.Conn) error) error
	// Own returns a connection for as long as the caller likes, and what ends it.
	Own(ctx context.Context) (conn *pgx.Conn, end func(ctx context.Context), err error)
	// Begin begins a transaction on a connection of the pool, with the isolation of the connection.
	Begin(ctx context.Context) (pgx.Tx, error)
	// BeginTx begins a transaction with opts.
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Pool returns the connections of pool.
func Pool(pool *pgxpool.Pool) Source { return pgxSource{pool} }

type pgxSource struct{ *pgxpool.Pool }

func (s pgxSource) Use(ctx context.Context, fn func(conn *pgx.Conn) error) error {
	c, err := s.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release() // closes it unless it is idle
	return fn(c.Conn())
}

func (s pgxSource) Own(ctx context.Context) (conn *pgx.Conn, end func(ctx context.Context), err error) {
	cfg := s.Config()
	c := cfg.ConnConfig.Copy()
	c.OnNotification = nil
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, c); err != nil {
			return nil, nil, err
		}
	}
	if conn, err = pgx.ConnectConfig(ctx, c); err != nil {
		return nil, nil, err
	}
	return conn, func(ctx context.Context) { closeConn(ctx, conn) }, nil
}

// closeConn closes conn although ctx has ended, but does not take long.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
