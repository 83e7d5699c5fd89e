package nats_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/internal/patience"
)

// testServer is a server in this process, with its store in a directory of the test.
type testServer struct {
	tb  testing.TB
	dir string
	set func(*server.Options)

	mu   sync.Mutex
	srv  *server.Server
	port int
}

func startServer(tb testing.TB, set func(*server.Options)) *testServer {
	tb.Helper()
	s := &testServer{tb: tb, dir: tb.TempDir(), set: set, port: server.RANDOM_PORT}
	if err := s.start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.stop)
	return s
}

func (s *testServer) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	opts := &server.Options{Host: "127.0.0.1", Port: s.port, JetStream: true, StoreDir: s.dir, NoSigs: true, NoLog: true}
	if s.set != nil {
		s.set(opts)
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	go srv.Start()
	if !srv.ReadyForConnections(patience.For(patience.Limit)) {
		return context.DeadlineExceeded
	}
	s.srv, s.port = srv, srv.Addr().(*net.TCPAddr).Port
	return nil
}

// setMaxPayload changes the limit of a message, as an operator does who reloads the configuration.
func (s *testServer) setMaxPayload(bytes int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	opts := &server.Options{Host: "127.0.0.1", Port: s.port, JetStream: true, StoreDir: s.dir, NoSigs: true, NoLog: true, MaxPayload: bytes}
	return s.srv.ReloadOptions(opts)
}

func (s *testServer) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}

func (s *testServer) restart(context.Context) error {
	s.stop()
	return s.start()
}

func (s *testServer) url() string { return s.srv.ClientURL() }

// proxy is a link that can be cut: it takes bytes, and drops them. Neither side notices before the link is healed.
type proxy struct {
	to string
	ln net.Listener

	mu    sync.Mutex
	cut   bool
	deaf  bool // only what the server says is dropped
	conns []net.Conn
}

func startProxy(tb testing.TB, to string) *proxy {
	tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &proxy{to: to, ln: ln}
	tb.Cleanup(func() {
		_ = ln.Close()
		p.set(false)
	})
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go p.serve(tb.Context(), c)
		}
	}()
	return p
}

func (p *proxy) serve(ctx context.Context, c net.Conn) {
	up, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.to)
	if err != nil {
		_ = c.Close()
		return
	}
	p.mu.Lock()
	if p.cut {
		p.mu.Unlock()
		_, _ = c.Close(), up.Close()
		return
	}
	p.conns = append(p.conns, c, up)
	p.mu.Unlock()
	go func() {
		_, _ = io.Copy(half{up, p, false}, c)
		_, _ = up.Close(), c.Close()
	}()
	_, _ = io.Copy(half{c, p, true}, up)
	_, _ = up.Close(), c.Close()
}

// half is one direction of a link.
type half struct {
	to   net.Conn
	p    *proxy
	down bool
}

func (h half) Write(b []byte) (int, error) {
	h.p.mu.Lock()
	cut := h.p.cut || h.down && h.p.deaf
	h.p.mu.Unlock()
	if cut {
		return len(b), nil
	}
	return h.to.Write(b)
}

// deafen loses what the server says, until set heals the link.
func (p *proxy) deafen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf = true
}

// set cuts the link, or heals it: then the connections end, since they have lost something.
func (p *proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut = cut; cut {
		return
	}
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns, p.deaf = nil, false
}

func (p *proxy) url() string { return "nats://" + p.ln.Addr().String() }

func dial(tb testing.TB, url string, opts nats.Options) *nats.Transport {
	tb.Helper()
	t, err := nats.Dial(tb.Context(), url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = t.Close(context.WithoutCancel(tb.Context())) })
	return t
}
