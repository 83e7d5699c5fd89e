package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

var _ core.Presence = (*Outbox)(nil)

const (
	// A token is the number of an advisory lock. These numbers belong to all programs that use the database: what they
	// count or make of a hash of 32 bits is less than tokenFrom, and tokens are random above it.
	tokenFrom = 1 << 62

	// pulse is how often the connection is looked at: no firewall takes it for forgotten then, and if the server is cut
	// off, that is noticed.
	pulse = 20 * time.Second

	// missingSQL is whether nobody has the lock of a token. It waits for nobody: whoever asks shares the lock for an
	// instant with others who ask. To look it up in pg_locks would take every partition of the server's lock table.
	missingSQL = `CASE WHEN presence <> 0 THEN pg_try_advisory_xact_lock_shared(presence) ELSE false END`
)

// Attend takes a session-level advisory lock on a connection of its own; see [core.Presence]. The lock ends with the
// connection, and so with the process. Attend returns no token if a pooler shares connections by transaction: the lock
// would be that of the pooler. It finds out by a notification to itself, which takes two seconds then, and twice at
// most. It returns none with Options.DisableNotify either.
func (o *Outbox) Attend(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
	if o.opts.DisableNotify || o.pooled.Load() >= maxDeaf {
		return 0, nil, nil
	}
	setup, cancel := context.WithTimeout(ctx, 2*selfTimeout)
	defer cancel()
	conn, err := o.connect(setup)
	if err != nil {
		return 0, nil, dberr.Failure("attend", err)
	}
	token = tokenFrom + rand.Int64N(tokenFrom)
	direct, err := o.isDirect(setup, conn, token)
	if err == nil && direct {
		var ok bool
		if err = conn.QueryRow(setup, "SELECT pg_try_advisory_lock($1)", token).Scan(&ok); err == nil && !ok {
			err = dberr.Misconfigured("attend", "somebody has advisory lock %d: no other program may use numbers from 2^62 on", token)
		}
	}
	if err != nil || !direct {
		closeConn(ctx, conn)
		return 0, nil, dberr.Failure("attend", err)
	}
	gone := make(chan struct{})
	go attend(ctx, conn, gone)
	return token, gone, nil
}

// isDirect reports whether conn has a session of its own in the database: a notification reaches it although it asks
// for nothing.
func (o *Outbox) isDirect(ctx context.Context, conn *pgx.Conn, token int64) (bool, error) {
	channel := fmt.Sprintf("waybill_%016x", token)
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return false, err
	}
	if _, err := o.pool.Exec(ctx, "SELECT pg_notify($1, '')", channel); err != nil { // over another connection: see startListening
		return false, err
	}
	wait, cancel := context.WithTimeout(ctx, selfTimeout)
	defer cancel()
	_, err := conn.WaitForNotification(wait)
	switch {
	case err == nil:
		o.pooled.Store(0)
		_, err = conn.Exec(ctx, "UNLISTEN *")
		return true, err
	case ctx.Err() != nil || !pgconn.Timeout(err):
		return false, err
	}
	if o.pooled.Add(1) >= maxDeaf {
		o.opts.logger().WarnContext(ctx, "waybill/postgres: a process that is killed is missed only when its lease is over: "+
			"a notification to ourselves did not arrive: is there a pooler that shares connections by transaction?", "event", "no_presence")
	}
	return false, nil
}

// attend stays on conn until it is lost or ctx ends.
func attend(ctx context.Context, conn *pgx.Conn, gone chan<- struct{}) {
	defer close(gone)
	defer closeConn(ctx, conn)
	for ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, pulse)
		_, err := conn.WaitForNotification(wait)
		if err != nil && wait.Err() != nil && ctx.Err() == nil {
			ping, stop := context.WithTimeout(ctx, pulse/2)
			err = conn.Ping(ping)
			stop()
		}
		cancel()
		if err != nil {
			return
		}
	}
}

// closeConn closes conn although ctx has ended, but does not take long.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
