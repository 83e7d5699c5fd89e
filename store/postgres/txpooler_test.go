package postgres_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// pooled is a connection to the server that clients share by transaction.
type pooled struct {
	conn    net.Conn
	answers chan []byte // messages of the server
}

// startPooler starts a pooler that shares two connections by transaction, and returns its connection string. As real
// ones do, it drops the server's messages that answer no connection.
func startPooler(tb testing.TB, dsn string) string {
	tb.Helper()
	servers := make(chan *pooled, 2)
	for range cap(servers) {
		c, err := pgconn.Connect(tb.Context(), dsn)
		if err != nil {
			tb.Fatal(err)
		}
		h, err := c.Hijack()
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = h.Conn.Close() })
		s := &pooled{h.Conn, make(chan []byte, 1000)}
		go func() {
			defer close(s.answers)
			for r := bufio.NewReader(s.conn); ; {
				m, err := readMessage(r)
				if err != nil {
					return
				}
				s.answers <- m
			}
		}()
		servers <- s
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = serve(c, servers)
			}()
		}
	}()
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	q := u.Query()
	q.Set("sslmode", "disable")
	q.Set("default_query_exec_mode", "exec")
	q.Del("host")
	q.Del("port")
	u.RawQuery, u.Host = q.Encode(), l.Addr().String()
	return u.String()
}

// readMessage reads one message with its type.
func readMessage(r io.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	m := make([]byte, 1+binary.BigEndian.Uint32(head[1:]))
	copy(m, head)
	_, err := io.ReadFull(r, m[5:])
	return m, err
}

func encode(kind byte, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
}

// serve is a client's connection.
func serve(c net.Conn, servers chan *pooled) error {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(size[:]))-4); err != nil {
		return err
	}
	hello := encode('R', "\x00\x00\x00\x00")
	for name, value := range map[string]string{"client_encoding": "UTF8", "standard_conforming_strings": "on", "server_version": "17.0"} {
		hello = append(hello, encode('S', name+"\x00"+value+"\x00")...)
	}
	hello = append(append(hello, encode('K', "\x00\x00\x00\x01secr")...), encode('Z', "I")...)
	if _, err := c.Write(hello); err != nil {
		return err
	}
	var s *pooled
	defer func() {
		if s != nil {
			servers <- s
		}
	}()
	for r := bufio.NewReader(c); ; {
		m, err := readMessage(r)
		if err != nil || m[0] == 'X' {
			return err
		}
		if s == nil {
			s = <-servers
			for len(s.answers) > 0 {
				<-s.answers // to nobody
			}
		}
		if _, err := s.conn.Write(m); err != nil {
			return err
		}
		for m[0] == 'Q' || m[0] == 'S' {
			a, ok := <-s.answers
			if !ok {
				return io.EOF
			}
			if _, err := c.Write(a); err != nil {
				return err
			}
			if a[0] == 'Z' {
				if a[5] == 'I' {
					servers <- s
					s = nil
				}
				break
			}
		}
	}
}
