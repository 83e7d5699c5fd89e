package rabbitmq

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// Writes never wait for the peer, arrive in order and complete, and the rest is written by Close.
func TestBatchConn(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe() // unbuffered: a write waits for its reader
	b := newBatchConn(near)
	var want bytes.Buffer
	for i := range 1000 {
		p := bytes.Repeat([]byte{byte(i)}, 10_000)
		want.Write(p)
		if n, err := b.Write(p); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	full := b.room()
	if full == nil {
		t.Fatal("there is room with 10 MB held")
	}
	got := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(far)
		got <- all
	}()
	for full != nil {
		<-full
		full = b.room()
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(want.Bytes(), <-got) {
		t.Error("other bytes arrived")
	}
}

// A peer that does not read delays Close for a bounded time only; a lost connection is reported by the next write.
func TestBatchConnStuck(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	b := newBatchConn(near)
	if _, err := b.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_ = b.Close()
	if took := time.Since(start); took > closeFlushTime+time.Second {
		t.Errorf("close took %s", took)
	}
	_ = far.Close()
	if _, err := b.Write([]byte("x")); err == nil {
		t.Error("a write after the loss was a success")
	}
}
