package rabbitmq

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	testpatience "github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
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
	synctest.Test(t, func(t *testing.T) {
		testpatience.BudgetOf(t)
		near, far := net.Pipe()
		b := newBatchConn(near)
		if _, err := b.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_ = b.Close()
		if took := time.Since(start); took != closeFlushTime {
			t.Errorf("close took %s", took)
		}
		_ = far.Close()
		if _, err := b.Write([]byte("x")); err == nil {
			t.Error("a write after the loss was a success")
		}
	})
}

// TR-03: the memory held for a broker that does not read is bounded, however large the messages are.
func TestBufferIsBounded(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	at, err := url.Parse(mq.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testenv.NewProxy(t, at.Host)
	bus, err := Dial(t.Context(), proxy.URL(mq.URL), Options{PublishConnections: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		proxy.Cut()
		if err := bus.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Logf("close: %v", err)
		}
	}()
	proxy.Blackhole(testenv.Up)
	const large = 2 << 20
	list := make([]waybill.Envelope, sendChunk)
	for i, body := 0, make([]byte, large); i < len(list); i++ {
		list[i] = waybill.Envelope{ID: waybill.NewID(), Topic: "a", Body: body}
	}
	done := make(chan error, 1)
	go func() { done <- bus.Publish(t.Context(), list).FirstErr() }()
	out := bus.pubs[0].link.current().out
	held := func() int {
		out.mu.Lock()
		defer out.mu.Unlock()
		return len(out.buf) + out.writing
	}
	testpatience.Until(t, "the publisher waits for room: the proxy does not read on", func() bool {
		out.mu.Lock()
		defer out.mu.Unlock()
		return out.drained != nil
	})
	if n := held(); n > maxUnwritten+large+64<<10 {
		t.Errorf("%d MiB are held", n>>20)
	}
	proxy.Cut()
	if err := <-done; waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("publish: %v", err)
	}
}
