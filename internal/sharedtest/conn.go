package sharedtest

import (
	"net"
	"sync/atomic"
)

// CountedConn counts the writes to a connection: pgx writes once a round trip.
type CountedConn struct {
	net.Conn
	Writes *atomic.Int64
}

// Write implements net.Conn.
func (c CountedConn) Write(b []byte) (int, error) {
	c.Writes.Add(1)
	return c.Conn.Write(b)
}
