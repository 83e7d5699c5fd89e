//go:build !race

package costs_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill/internal/sharedtest"
)

// splitter finds the messages of a protocol in the bytes that are written to it. It is for one goroutine.
type splitter struct {
	skip   int // bytes before the first message
	header int // bytes of a header
	size   func(header []byte) int
	found  func(header []byte)
	head   []byte // of a header that has begun
}

// Write implements io.Writer.
func (s *splitter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		k := min(s.skip, len(p))
		s.skip, p = s.skip-k, p[k:]
		k = min(s.header-len(s.head), len(p))
		s.head, p = append(s.head, p[:k]...), p[k:]
		if len(s.head) == s.header {
			s.found(s.head)
			s.skip, s.head = s.size(s.head), s.head[:0]
		}
	}
	return n, nil
}

// newReplies counts the statements that a Postgres server says it has done.
func newReplies(done *atomic.Int64) *splitter {
	return &splitter{
		header: 5,
		size:   func(h []byte) int { return int(binary.BigEndian.Uint32(h[1:])) - 4 },
		found: func(h []byte) {
			if h[0] == 'C' { // CommandComplete
				done.Add(1)
			}
		},
	}
}

// newFrames counts the AMQP frames of a client.
func newFrames(n *atomic.Int64) *splitter {
	return &splitter{
		skip: len("AMQP\x00\x00\x09\x01"), header: 7,
		size:  func(h []byte) int { return int(binary.BigEndian.Uint32(h[3:])) + 1 },
		found: func([]byte) { n.Add(1) },
	}
}

// countedConn is a connection to Postgres whose statements are counted too.
type countedConn struct {
	sharedtest.CountedConn
	replies *splitter
}

// Read implements net.Conn.
func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.CountedConn.Read(b)
	_, _ = c.replies.Write(b[:n])
	return n, err
}

// tap is a proxy before upstream that counts the AMQP frames of clients. It returns its address.
func tap(t *testing.T, upstream string, n *atomic.Int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		stop()
		l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", upstream)
			if err != nil {
				down.Close()
				continue
			}
			ended := context.AfterFunc(ctx, func() { up.Close(); down.Close() })
			running.Go(func() {
				defer up.Close()
				defer ended()
				_, _ = io.Copy(io.MultiWriter(newFrames(n), up), down)
			})
			running.Go(func() {
				defer down.Close()
				_, _ = io.Copy(down, up)
			})
		}
	})
	return l.Addr().String()
}

// Messages are found wherever a read ends.
func TestSplitter(t *testing.T) {
	t.Parallel()
	amqp := "AMQP\x00\x00\x09\x01" + "\x01\x00\x01\x00\x00\x00\x03abc\xce" + "\x08\x00\x00\x00\x00\x00\x00\xce"
	postgres := "C\x00\x00\x00\x0bSELECT" + "\x00" + "Z\x00\x00\x00\x05I" + "C\x00\x00\x00\x04"
	for part := 1; part < len(amqp)+len(postgres); part++ {
		var frames, statements atomic.Int64
		for text, s := range map[string]*splitter{amqp: newFrames(&frames), postgres: newReplies(&statements)} {
			for rest := []byte(text); len(rest) > 0; rest = rest[min(part, len(rest)):] {
				_, _ = s.Write(rest[:min(part, len(rest))])
			}
		}
		if frames.Load() != 2 || statements.Load() != 2 {
			t.Fatalf("in parts of %d: %d frames and %d statements, want 2 of each", part, frames.Load(), statements.Load())
		}
	}
}
