package conns

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// pgxConn returns the connection of pgx in one of database/sql.
func pgxConn(driverConn any) (*pgx.Conn, error) {
	c, ok := driverConn.(interface{ Conn() *pgx.Conn }) // *stdlib.Conn
	if !ok {
		return nil, dberr.Misconfigured("connect", "the *sql.DB has connections of type %T: "+
			"open it with pgx's driver, such as sql.Open(\"pgx\", …) of github.com/jackc/pgx/v5/stdlib", driverConn)
	}
	return c.Conn(), nil
}

// useSQL is Use for db.
func useSQL(ctx context.Context, db *sql.DB, fn func(conn *pgx.Conn) error) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // gives it back, unless it was closed
	var failed error                 // of fn; what Raw gets decides about the connection
	err = c.Raw(func(driverConn any) error {
		conn, err := pgxConn(driverConn)
		if err != nil {
			return err
		}
		failed = fn(conn)
		if conn.IsClosed() || conn.PgConn().IsBusy() || conn.PgConn().TxStatus() != 'I' {
			return driver.ErrBadConn // closes it
		}
		return nil
	})
	if failed != nil || errors.Is(err, driver.ErrBadConn) {
		return failed
	}
	return err
}

// ownSQL is Own for db.
func ownSQL(ctx context.Context, db *sql.DB) (conn *pgx.Conn, end func(ctx context.Context), err error) {
	conn, release, err := hold(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	return conn, func(ctx context.Context) {
		closeConn(ctx, conn)
		release()
	}, nil
}

// hold takes a connection until release is called. It stays inside of Raw meanwhile, as database/sql asks.
func hold(ctx context.Context, db *sql.DB) (conn *pgx.Conn, release func(), err error) {
	got, done, over := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		got <- useSQL(ctx, db, func(c *pgx.Conn) error {
			conn = c
			got <- nil
			<-done
			return nil
		})
	}()
	if err := <-got; err != nil {
		return nil, nil, err
	}
	return conn, func() { close(done); <-over }, nil
}

// beginSQL is BeginTx for db.
func beginSQL(ctx context.Context, db *sql.DB, opts pgx.TxOptions) (pgx.Tx, error) {
	conn, release, err := hold(ctx, db)
	if err != nil {
		return nil, err
	}
	tx, err := conn.BeginTx(ctx, opts)
	if err != nil {
		release()
		return nil, err
	}
	return &heldTx{tx, release}, nil
}

// heldTx gives its connection back when it ends.
type heldTx struct {
	pgx.Tx
	release func() // nil once it has ended
}

func (t *heldTx) end(err error) error {
	if t.release != nil {
		t.release()
		t.release = nil
	}
	return err
}

func (t *heldTx) Commit(ctx context.Context) error   { return t.end(t.Tx.Commit(ctx)) }
func (t *heldTx) Rollback(ctx context.Context) error { return t.end(t.Tx.Rollback(ctx)) }
