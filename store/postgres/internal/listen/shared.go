package listen

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/store/postgres/internal/conns"
)

// sharedLooks is how often isShared compares two connections.
const sharedLooks = 3

// isShared reports whether a pooler gives the server's sessions to several connections by transaction. A LISTEN or a
// lock of such a session would stay with it for others, and no connection could take it back.
//
// A connection to the server itself names its session in the protocol. A pooler names something else there. Then either
// each connection has a session of its own, or sessions are shared: conn changes its session between two statements, or
// another connection has the same one. If a pooler with many sessions hides that, the notification to ourselves tells.
func isShared(ctx context.Context, conn *pgx.Conn, source conns.Source) (bool, error) {
	session := func(c *pgx.Conn) (pid uint32, err error) {
		err = c.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid)
		return pid, err
	}
	first, err := session(conn)
	if err != nil || first == conn.PgConn().PID() {
		return false, err
	}
	for range sharedLooks {
		own, err := session(conn)
		if err != nil || own != first {
			return err == nil, err
		}
		var others uint32
		err = source.Use(ctx, func(other *pgx.Conn) (err error) {
			others, err = session(other)
			return err
		})
		if err != nil || others == own {
			return err == nil, err
		}
	}
	return false, nil
}
