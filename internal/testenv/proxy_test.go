package testenv_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// echo starts a server that sends the received bytes back, and returns its address and a channel of those bytes.
func echo(t *testing.T) (addr string, received <-chan byte) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan byte, 1<<20)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				b := make([]byte, 4096)
				for {
					n, err := conn.Read(b)
					for _, c := range b[:n] {
						got <- c
					}
					if _, werr := conn.Write(b[:n]); err != nil || werr != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String(), got
}

func open(t *testing.T, p *testenv.Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience.For(patience.Limit)))
	return conn
}

// send sends one byte and returns how long its echo took.
func send(conn net.Conn, c byte) (time.Duration, error) {
	begin := time.Now()
	if _, err := conn.Write([]byte{c}); err != nil {
		return 0, err
	}
	var b [1]byte
	_, err := io.ReadFull(conn, b[:])
	return time.Since(begin), err
}

func TestProxyForwardsAndEnds(t *testing.T) {
	t.Parallel()
	addr, _ := echo(t)
	p := testenv.NewProxy(t, addr)
	if got, want := p.URL("amqp://u:p@example.com:1/v?x=1"), "amqp://u:p@"+p.Addr()+"/v?x=1"; got != want {
		t.Errorf("URL is %s, want %s", got, want)
	}
	conn := open(t, p)
	data := bytes.Repeat([]byte("0123456789"), 50_000)
	go func() {
		_, _ = conn.Write(data)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(conn) // until the server ends too
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes came back, want %d: %v", len(got), len(data), err)
	}
}

func TestProxyCutRefuseAccept(t *testing.T) {
	t.Parallel()
	addr, _ := echo(t)
	p := testenv.NewProxy(t, addr)
	conn := open(t, p)
	if _, err := send(conn, 'a'); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if _, err := send(conn, 'b'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a cut: %v, want a reset at once", err)
	}
	conn = open(t, p)
	if _, err := send(conn, 'b'); err != nil { // the proxy has accepted it
		t.Fatal(err)
	}
	p.Refuse()
	if c, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refused: %v, %v", c, err)
	}
	if _, err := send(conn, 'c'); err != nil {
		t.Errorf("an open connection while new ones are refused: %v", err)
	}
	if err := p.Accept(); err != nil {
		t.Fatal(err)
	}
	if _, err := send(open(t, p), 'd'); err != nil {
		t.Error(err)
	}
}

func TestProxyBlackholeLosesOnlyTheAnswer(t *testing.T) {
	t.Parallel()
	addr, received := echo(t)
	p := testenv.NewProxy(t, addr)
	conn := open(t, p)
	if _, err := send(conn, 'a'); err != nil {
		t.Fatal(err)
	}
	<-received
	p.Blackhole(testenv.Down)
	if _, err := conn.Write([]byte("b")); err != nil {
		t.Fatal(err)
	}
	if c := <-received; c != 'b' {
		t.Errorf("the server got %c", c)
	}
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)) // a busy machine sees less, and fails nothing
	var early [1]byte
	if _, err := conn.Read(early[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an answer through a black hole: %v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience.For(patience.Limit)))
	p.Heal()
	var late [1]byte
	if _, err := io.ReadFull(conn, late[:]); err != nil || late[0] != 'b' {
		t.Errorf("after healing: %q, %v", late, err)
	}
	p.Blackhole(testenv.Up)
	if _, err := conn.Write([]byte("c")); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	p.Heal()
	if _, err := send(open(t, p), 'd'); err != nil {
		t.Fatal(err)
	}
	if c := <-received; c != 'd' {
		t.Errorf("the server got %c after the cut, want only d", c)
	}
}

func TestProxyLatency(t *testing.T) {
	t.Parallel()
	addr, _ := echo(t)
	p := testenv.NewProxy(t, addr)
	conn := open(t, p)
	p.Latency(100 * time.Millisecond)
	if took, err := send(conn, 'a'); err != nil || took < 200*time.Millisecond {
		t.Errorf("took %v (%v), want 100ms each way", took, err)
	}
	p.Latency(time.Hour)
	p.Latency(0)
	if _, err := send(conn, 'a'); err != nil {
		t.Errorf("the latency stays: %v", err)
	}
}

func TestProxyCutAfter(t *testing.T) {
	t.Parallel()
	addr, received := echo(t)
	p := testenv.NewProxy(t, addr)
	conn := open(t, p)
	p.CutAfter(testenv.Down, 5)
	if _, err := conn.Write([]byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(conn)
	if string(got) != "01234" {
		t.Errorf("got %q, want the first 5 bytes", got)
	}
	for range 10 {
		<-received // all of them reached the server
	}
	if _, err := send(open(t, p), 'x'); err != nil {
		t.Errorf("after the cut: %v", err)
	}
}

func TestProxyCloseWhileHeld(t *testing.T) {
	t.Parallel()
	addr, _ := echo(t)
	p, err := testenv.StartProxy(addr)
	if err != nil {
		t.Fatal(err)
	}
	conn := open(t, p)
	p.Blackhole(testenv.Up | testenv.Down)
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	p.Close()
	p.Close()
	if _, err := io.ReadAll(conn); err == nil {
		t.Error("the connection ended in order, want a reset")
	}
}

// A port stays its owner's while nothing listens on it, and is free in the end.
func TestPortsAreReserved(t *testing.T) {
	t.Parallel()
	needLinux(t)
	p, err := testenv.StartProxy("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(p.Addr(), ":")
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	p.Refuse()
	if !testenv.Reserved(port) {
		t.Error("another one may take the port of a proxy that refuses")
	}
	p.Close()
	if testenv.Reserved(port) {
		t.Error("the port of a closed proxy is not free")
	}
}

// processesStart starts processes until the returned function is called.
func processesStart(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	for range 2 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "true").Run()
			}
		})
	}
	return func() {
		cancel()
		starting.Wait()
	}
}

// A port that is found free is free at once, although a process that starts meanwhile has all sockets for a moment.
func TestFreePortWhileProcessesStart(t *testing.T) {
	t.Parallel()
	needLinux(t)
	addr, _ := echo(t)
	defer processesStart(t)()
	for range 500 {
		testenv.NewProxy(t, addr).Close()
	}
}

// Refuse counts at once. A process that this one starts has all its sockets for a moment, so that to close the
// listener is not enough.
func TestProxyRefusesWhileProcessesStart(t *testing.T) {
	t.Parallel()
	needLinux(t)
	addr, _ := echo(t)
	p := testenv.NewProxy(t, addr)
	defer processesStart(t)()
	for range 200 {
		p.Refuse()
		if c, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			if err == nil {
				_ = c.Close()
			}
			t.Fatalf("refused: %v", err)
		}
		if err := p.Accept(); err != nil {
			t.Fatal(err)
		}
	}
}
