package waybillmysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"math"
	"math/rand/v2"
	"time"
)

// presenceEvery is how often a connection that shows presence is looked at: the driver sees that its other end has
// closed it. Each pingTimes of these, the server is asked: it ends a connection that is silent for idleSeconds.
const (
	presenceEvery = 200 * time.Millisecond
	pingTimes     = 10
)

// Acquire shows presence by a GET_LOCK on a connection of its own; see core.Presence. Behind a proxy that shares
// connections it shows the proxy's.
func (s *Store) Acquire(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
	conn, err := s.own.Conn(ctx)
	if err != nil {
		return 0, nil, classify("acquire presence", err)
	}
	token = 1 + rand.Int64N(math.MaxInt64-1)
	got, err := collect(ctx, conn, value[int], `SELECT GET_LOCK(CONCAT('waybill:', ?), 0)`, token)
	if err != nil || len(got) == 0 || got[0] != 1 {
		return 0, nil, classify("acquire presence", discard(conn, err))
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(presenceEvery)
		defer tick.Stop()
		for i := 1; ; i++ {
			select {
			case <-tick.C:
				if alive(ctx, conn, i%pingTimes == 0) {
					continue
				}
			case <-ctx.Done():
			}
			_ = discard(conn, nil) // it is lost, or no longer wanted
			return
		}
	}()
	return token, gone, nil
}

func alive(ctx context.Context, conn *sql.Conn, ping bool) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if ping {
		return conn.PingContext(ctx) == nil
	}
	return conn.Raw(func(c any) error {
		if r, ok := c.(driver.SessionResetter); ok {
			return r.ResetSession(ctx)
		}
		return nil
	}) == nil
}

// discard closes a connection instead of giving it back to the pool, and returns err.
func discard(conn *sql.Conn, err error) error {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
	return err
}
