package listen

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/store/postgres/internal/conns"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

const (
	// A token is the number of an advisory lock. These numbers belong to all programs that use the database: what
	// they count or make of a hash of 32 bits is less than tokenFrom, and tokens are random above it.
	tokenFrom = 1 << 62

	// pulse is how often the connection is looked at: no firewall takes it for forgotten then, and if the server is
	// cut off, that is noticed.
	pulse = 30 * time.Second
)

// presence is what Acquire goes by.
type presence struct {
	conns  conns.Source
	off    bool
	logger func() *slog.Logger
	pooled atomic.Int32 // how often in a row no direct connection was found
}

// Acquire takes a session-level advisory lock on a connection of its own; see core.Presence.
func (w *Waiter) Acquire(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
	p := &w.presence
	if p.off || !p.conns.MayOwn() || p.pooled.Load() >= maxDeaf {
		return 0, nil, nil
	}
	setup, cancel := context.WithTimeout(ctx, 2*selfTimeout)
	defer cancel()
	conn, end, err := p.conns.Own(setup)
	if err != nil {
		return 0, nil, dberr.Failure("acquire presence", err)
	}
	token = tokenFrom + rand.Int64N(tokenFrom)
	direct, err := p.isDirect(setup, conn, token)
	if err == nil && direct {
		err = lock(setup, conn, token)
	}
	if err != nil || !direct {
		end(ctx)
		return 0, nil, dberr.Failure("acquire presence", err)
	}
	gone := make(chan struct{})
	go watchPresence(ctx, conn, end, gone)
	return token, gone, nil
}

// isDirect reports whether conn has a session of its own in the database: a notification reaches it although it asks
// for nothing.
func (p *presence) isDirect(ctx context.Context, conn *pgx.Conn, token int64) (bool, error) {
	if shared, err := isShared(ctx, conn, p.conns); shared || err != nil {
		if shared {
			p.pooled.Store(maxDeaf)
			p.none(ctx, errShared.Error())
		}
		return false, err
	}
	channel := fmt.Sprintf("waybill_%016x", token)
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return false, err
	}
	err := p.conns.Use(ctx, func(other *pgx.Conn) error { // see listener.start
		_, err := other.Exec(ctx, "SELECT pg_catalog.pg_notify($1, '')", pgx.QueryExecModeExec, channel)
		return err
	})
	if err != nil {
		return false, err
	}
	wait, cancel := context.WithTimeout(ctx, selfTimeout)
	defer cancel()
	_, err = conn.WaitForNotification(wait)
	switch {
	case err == nil:
		p.pooled.Store(0)
		return true, nil
	case ctx.Err() != nil || !pgconn.Timeout(err):
		return false, err
	}
	if p.pooled.Add(1) >= maxDeaf {
		p.none(ctx, "a notification to ourselves did not arrive: is there a pooler that shares connections by transaction?")
	}
	return false, nil
}

// lock takes the advisory lock, and listens no more.
func lock(ctx context.Context, conn *pgx.Conn, token int64) error {
	answers, err := conn.PgConn().Exec(ctx, "UNLISTEN *; SELECT pg_catalog.pg_try_advisory_lock("+strconv.FormatInt(token, 10)+")").ReadAll()
	if err == nil && string(answers[1].Rows[0][0]) != "t" {
		err = dberr.Misconfigured("acquire presence", "another session has advisory lock %d: no other program may use numbers from 2^62 on", token)
	}
	return err
}

func (p *presence) none(ctx context.Context, why string) {
	p.logger().WarnContext(ctx, "a process that is killed is missed only when its lease is over", "event", "postgres.no_presence", "error", why)
}

// watchPresence stays on conn until it is lost or ctx ends.
func watchPresence(ctx context.Context, conn *pgx.Conn, end func(context.Context), gone chan<- struct{}) {
	defer close(gone)
	defer end(ctx)
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
