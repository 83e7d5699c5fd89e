package conns

import (
	"context"
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Source gives the connections of a pool. Make it with Pool or SQL. It is no interface, so that the function passed to
// Use costs no memory.
type Source struct {
	pool *pgxpool.Pool
	db   *sql.DB // if pool is nil
}

// Pool returns the connections of pool.
func Pool(pool *pgxpool.Pool) Source { return Source{pool: pool} }

// SQL returns the connections of db, whose driver must be pgx's: it was opened with sql.Open("pgx", …),
// stdlib.OpenDB or stdlib.OpenDBFromPool.
func SQL(db *sql.DB) Source { return Source{db: db} }

// leastForOwn is how many connections a bounded database/sql pool needs so that some of them can be owned: two are, and
// the rest must do for everything else.
const leastForOwn = 4

// relayNeeds is how many connections a relay uses at a time: to read, to settle, and to renew its lease. It holds
// ownNeeds more of a database/sql pool for as long as it runs.
const (
	relayNeeds = 3
	ownNeeds   = 2
)

// Size returns the pool, as something to compare, and how many connections it can have; 0 = any number.
func (s Source) Size() (pool any, most int) {
	if s.pool == nil {
		return s.db, s.db.Stats().MaxOpenConnections
	}
	return s.pool, int(s.pool.Config().MaxConns)
}

// Needs returns how many connections of the pool a relay needs so that nothing waits for one.
func (s Source) Needs() int {
	if s.pool == nil {
		return relayNeeds + ownNeeds
	}
	return relayNeeds
}

// MayOwn reports whether the pool can spare connections for Own.
func (s Source) MayOwn() bool {
	if s.pool != nil {
		return true // they are beside it
	}
	most := s.db.Stats().MaxOpenConnections
	return most == 0 || most >= leastForOwn
}

// Use runs fn with a connection of the pool that no other goroutine uses meanwhile.
func (s Source) Use(ctx context.Context, fn func(conn *pgx.Conn) error) error {
	if s.pool == nil {
		return useSQL(ctx, s.db, fn)
	}
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release() // closes it unless it is idle
	return fn(c.Conn())
}

// Own returns a connection for as long as the caller likes, and the function that ends it.
func (s Source) Own(ctx context.Context) (conn *pgx.Conn, end func(ctx context.Context), err error) {
	if s.pool == nil {
		return ownSQL(ctx, s.db)
	}
	cfg := s.pool.Config()
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

// Begin begins a transaction on a connection of the pool, with the isolation of the connection.
func (s Source) Begin(ctx context.Context) (pgx.Tx, error) { return s.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx begins a transaction with opts.
func (s Source) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	if s.pool == nil {
		return beginSQL(ctx, s.db, opts)
	}
	return s.pool.BeginTx(ctx, opts)
}

// closeConn closes conn although ctx has ended, but does not take long.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
