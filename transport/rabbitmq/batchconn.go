package rabbitmq

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"time"
)

// batchConn is a net.Conn whose Write never waits for the network: it appends to a buffer, and one goroutine writes the
// gathered bytes. The driver flushes after every message; this turns the flushes of a burst into few system calls, and
// keeps a publish from hanging when the broker stops reading. The callers bound the buffer: a publisher waits while it
// holds more than maxUnwritten bytes.
//
// Read goes through a larger buffer than the driver's: a burst of deliveries costs few system calls as well. It hands
// on only header frames that the driver can read.
type batchConn struct {
	net.Conn
	in headerFrames // the driver's one reader uses it

	mu      sync.Mutex
	buf     []byte        // written by Write, taken by the flusher
	spare   []byte        // the flusher's other buffer
	writing int           // bytes that the flusher is writing now
	err     error         // the first error; every later Write returns it
	readErr error         // the first error of Read
	drained chan struct{} // closed when the buffer shrinks; nil if nobody waits

	wake chan struct{} // capacity 1
	stop chan struct{} // closed by Close
	done chan struct{} // closed by the flusher
	once sync.Once
}

const (
	maxUnwritten   = 4 << 20         // above it publishers wait
	keepBuffer     = 256 << 10       // larger buffers are not kept
	readBuffer     = 64 << 10        // bytes
	closeFlushTime = 2 * time.Second // how long Close waits for the rest to be written
	// readGrace is how long after a failed write the reader may still receive the broker's last words, such as a
	// TLS alert.
	readGrace = 100 * time.Millisecond
)

var errConnClosed = errors.New("connection closed")

func newBatchConn(c net.Conn) *batchConn {
	b := &batchConn{Conn: c, in: headerFrames{in: bufio.NewReaderSize(c, readBuffer)}, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go b.flush()
	return b
}

// Write takes p, or reports the error of an earlier write.
func (b *batchConn) Write(p []byte) (int, error) {
	b.mu.Lock()
	if b.err != nil {
		defer b.mu.Unlock()
		return 0, b.err
	}
	b.buf = append(b.buf, p...)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return len(p), nil
}

// Read returns the bytes that have arrived. The first error is kept. It is for one goroutine at a time.
func (b *batchConn) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	if err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.readErr == nil {
			b.readErr = err
		}
	}
	return n, err
}

func (b *batchConn) readError() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.readErr
}

// Close writes what is held, for at most closeFlushTime, and closes the connection.
func (b *batchConn) Close() error {
	var err error
	b.once.Do(func() {
		_ = b.SetWriteDeadline(time.Now().Add(closeFlushTime))
		close(b.stop)
		<-b.done
		err = b.Conn.Close()
	})
	return err
}

// room returns nil if little enough is held, else a channel that is closed when it is time to look again.
func (b *batchConn) room() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.buf)+b.writing <= maxUnwritten || b.err != nil {
		return nil
	}
	if b.drained == nil {
		b.drained = make(chan struct{})
	}
	return b.drained
}

func (b *batchConn) flush() {
	defer close(b.done)
	for stopping := false; ; {
		if !b.writeAll() || stopping {
			return
		}
		select {
		case <-b.wake:
		case <-b.stop:
			stopping = true // once more for the rest
		}
	}
}

// writeAll writes until nothing is held, and reports whether the connection still works. It swaps the two buffers under
// the lock and writes without it, so that Write never waits for the network.
func (b *batchConn) writeAll() bool {
	for {
		b.mu.Lock()
		out := b.buf
		if len(out) == 0 {
			b.mu.Unlock()
			return true
		}
		b.buf, b.spare, b.writing = b.spare[:0], nil, len(out)
		b.mu.Unlock()
		_, err := b.Conn.Write(out)
		b.mu.Lock()
		if cap(out) <= keepBuffer {
			b.spare = out[:0]
		}
		b.writing = 0
		if err != nil {
			b.err = errors.Join(errConnClosed, err)
		}
		if b.drained != nil {
			close(b.drained)
			b.drained = nil
		}
		b.mu.Unlock()
		if err != nil {
			// the driver's reader ends with an error and reports the loss
			time.AfterFunc(readGrace, func() { _ = b.Conn.Close() })
			return false
		}
	}
}
