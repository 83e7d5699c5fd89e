package listen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/obs"
	"github.com/waybill-go/waybill/store/postgres/internal/conns"
)

const (
	selfPrefix    = "\x01self" // no route begins with a control character
	selfTimeout   = 2 * time.Second
	relistenFirst = time.Second
	relistenLast  = time.Minute
	// maxDeaf is how often the notification to itself may fail to arrive. Each LISTEN through a pooler that shares
	// connections by transaction, and was not recognised as one, stays on one of its connections for ever.
	maxDeaf = 2
)

var errShared = errors.New("a pooler shares connections by transaction, and a LISTEN would stay with somebody else's")

// listener is the connection that listens, if there is one, and when to try again if not.
type listener struct {
	conns          conns.Source
	off            bool
	logger         func() *slog.Logger
	repeats        *obs.Limiter
	listen, notify string
	others         func(route string) // is told of notifications for routes that no Wait is for; "" = all routes

	conn     *pgx.Conn // nil if there is none
	end      func(ctx context.Context)
	self     string    // the notification that must arrive, "" once it did
	selfBy   time.Time // by then, if the connection was read since
	overdue  bool      // it was, by a query that began after selfBy
	relisten time.Time // when to try again
	backoff  time.Duration
	deaf     int // how often in a row the notification did not arrive
}

func newListener(o Options) listener {
	return listener{
		conns: o.Conns, off: o.Off, logger: o.Logger, repeats: &obs.Limiter{},
		listen: "LISTEN " + pgx.Identifier{o.Names.Channel()}.Sanitize(), notify: o.Names.SQL("SELECT pg_notify({channel}, $1)"),
	}
}

// works reports whether notifications are known to arrive.
func (l *listener) works() bool { return l.conn != nil && l.self == "" }

// keep opens the connection, if there is none and it is time.
func (l *listener) keep(ctx context.Context) {
	if l.off || !l.conns.MayOwn() || l.conn != nil || l.deaf >= maxDeaf || time.Now().Before(l.relisten) {
		return
	}
	if err := l.start(ctx); err != nil && ctx.Err() == nil {
		l.lost(ctx, err)
	}
}

func (l *listener) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, selfTimeout)
	defer cancel()
	conn, end, err := l.conns.Own(ctx)
	if err != nil {
		return err
	}
	l.conn, l.end = conn, end
	switch shared, err := isShared(ctx, conn, l.conns); {
	case err != nil:
		return err
	case shared:
		l.deaf = maxDeaf
		return errShared
	}
	if _, err := conn.Exec(ctx, l.listen); err != nil {
		return err
	}
	l.self = fmt.Sprintf("%s%016x", selfPrefix, rand.Uint64())
	l.selfBy = time.Now().Add(selfTimeout)
	l.overdue = false
	return l.conns.Use(ctx, func(other *pgx.Conn) error { // on the same one a pooler would hide the fault
		_, err := other.Exec(ctx, l.notify, pgx.QueryExecModeExec, l.self)
		return err
	})
}

// takeArrived takes the notifications that came with the answer to a query, and reports whether one was for routes. A
// busy relay reads its connection in no other way. It gives the connection up if the notification to itself should have
// been among them: a pooler stands between, and the LISTEN went to some other session.
func (l *listener) takeArrived(ctx context.Context, routes []string) (notified bool) {
	over, cancel := context.WithCancel(ctx)
	cancel() // what has arrived is returned all the same
	for {
		n, err := l.conn.WaitForNotification(over)
		if err != nil {
			break
		}
		notified = l.take(n.Payload, routes) || notified
	}
	if l.self != "" && l.overdue {
		l.deaf++
		l.lost(ctx, errors.New("a notification to ourselves did not arrive: is there a pooler that shares connections by transaction?"))
	}
	return notified
}

// take reports whether the notification is for one of routes, and not to ourselves.
func (l *listener) take(payload string, routes []string) bool {
	if payload != "" && payload == l.self {
		l.self, l.backoff, l.deaf = "", 0, 0
		return false
	}
	if payload != "" && slices.Contains(routes, payload) {
		return true
	}
	l.others(payload)
	return payload == ""
}

// lost gives the listening connection up and says so. Polling goes on.
func (l *listener) lost(ctx context.Context, err error) {
	l.close(ctx)
	l.backoff = min(max(2*l.backoff, relistenFirst), relistenLast)
	l.relisten = time.Now().Add(l.backoff)
	level, retry := slog.LevelWarn, l.backoff.String()
	if l.deaf >= maxDeaf {
		retry = "never: connect to the server itself, or set DisableNotify"
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "57P01" {
		level = slog.LevelInfo // an operator's restart
	}
	n, ok := l.repeats.Allow(time.Now(), "listen_lost")
	if !ok {
		return
	}
	l.logger().Log(ctx, level, "LISTEN lost, polling meanwhile",
		"event", "postgres.listen_lost", "retry_in", retry, obs.Suppressed, n, "error", core.ErrorText(err))
}

func (l *listener) close(ctx context.Context) {
	if l.conn == nil {
		return
	}
	l.end(ctx)
	l.conn, l.end, l.self = nil, nil, ""
}
