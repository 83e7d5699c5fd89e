package testenv

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"
)

// Direction says which way bytes flow through a proxy. Up|Down is both.
type Direction int

// Up is from the client to the server, Down from the server to the client.
const (
	Up Direction = 1 << iota
	Down
)

// Proxy is a TCP proxy that can fail. To lose a confirm: Blackhole(Down), let the client publish, Cut.
type Proxy struct {
	addr string
	port int

	mu       sync.Mutex
	upstream string
	change   chan struct{} // closed and replaced whenever held changes or a connection is cut
	listener net.Listener
	conns    map[*net.TCPConn]bool // both sides of each pair
	held     Direction
	latency  time.Duration
	cutAfter map[Direction]int64 // bytes left; no entry: no limit
	closed   bool
	wg       sync.WaitGroup
}

// StartProxy starts a proxy before the address upstream (host:port). The caller must Close it.
func StartProxy(upstream string) (*Proxy, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &Proxy{upstream: upstream, addr: loopback(port), port: port, change: make(chan struct{}), conns: map[*net.TCPConn]bool{}, cutAfter: map[Direction]int64{}}
	return p, p.Accept()
}

// Addr returns the address that clients connect to.
func (p *Proxy) Addr() string { return p.addr }

// URL returns the URL raw with its host and port replaced by the proxy's.
func (p *Proxy) URL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	u.Host = p.addr
	return u.String()
}

// SetUpstream makes new connections go to another address. Open ones stay.
func (p *Proxy) SetUpstream(addr string) { p.set(func() { p.upstream = addr }) }

// Cut resets all open connections. Bytes that were held back are lost. New connections are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
	for c := range p.conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	clear(p.conns)
	p.notify()
}

// Refuse makes new connections fail with "connection refused". Open ones stay.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		stopListening(p.listener)
		p.listener = nil
	}
}

// Accept ends Refuse.
func (p *Proxy) Accept() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		return fmt.Errorf("waybill/testenv: proxy: %w", err)
	}
	p.listener = l
	p.wg.Go(func() { p.serve(l) })
	return nil
}

// Blackhole holds back what flows in a direction, on open connections and on new ones, which are still accepted.
// Nothing is closed.
func (p *Proxy) Blackhole(d Direction) { p.set(func() { p.held |= d }) }

// Heal ends Blackhole in both directions. Bytes that were held back are delivered late, as TCP does after a lost link
// comes back.
func (p *Proxy) Heal() { p.set(func() { p.held = 0 }) }

// Latency delays what flows, in each direction, by d. It does not limit the bandwidth.
func (p *Proxy) Latency(d time.Duration) { p.set(func() { p.latency = d }) }

// CutAfter lets n more bytes pass in a direction, over all connections together, and then cuts all connections, once.
func (p *Proxy) CutAfter(d Direction, n int64) { p.set(func() { p.cutAfter[d] = n }) }

// Close ends the proxy and its connections. It may be called more than once.
func (p *Proxy) Close() {
	p.Refuse()
	p.set(func() { p.closed = true; p.cut() })
	p.wg.Wait()
	freed(p.port)
}

func (p *Proxy) set(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
	p.notify()
}

func (p *Proxy) notify() {
	close(p.change)
	p.change = make(chan struct{})
}

func (p *Proxy) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.connect(conn.(*net.TCPConn)) }) // the listener is TCP
	}
}

func (p *Proxy) connect(down *net.TCPConn) {
	if !p.add(down) {
		return
	}
	p.mu.Lock()
	upstream := p.upstream
	p.mu.Unlock()
	conn, err := net.DialTimeout("tcp", upstream, 5*time.Second)
	if err != nil {
		p.drop(down)
		return
	}
	up := conn.(*net.TCPConn) // the network is tcp
	p.mu.Lock()
	open := p.conns[down] // not if a cut came in between
	if open {
		p.conns[up] = true
	}
	p.mu.Unlock()
	if !open {
		_ = up.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pump(Up, down, up) })
	both.Go(func() { p.pump(Down, up, down) })
	both.Wait()
	p.drop(down, up)
}

type chunk struct {
	data []byte
	at   time.Time
}

// pump moves bytes in one direction: a reader stamps them, so that a delay does not limit the bandwidth, and this
// goroutine delivers them.
func (p *Proxy) pump(d Direction, from, to *net.TCPConn) {
	chunks := make(chan chunk, 256)
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(chunks)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if n > 0 {
				select {
				case chunks <- chunk{b[:n], time.Now()}:
				case <-stop:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	defer reader.Wait()
	defer close(stop)
	for c := range chunks {
		if !p.await(d, to, c.at) || p.deliver(d, to, c.data) != nil {
			p.drop(from, to)
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns[to] { // an orderly end in this direction; a cut, which has closed the other side first, is none
		_ = to.CloseWrite()
	}
}

// await blocks until what was read at the given time may be delivered; false means the connection was cut.
func (p *Proxy) await(d Direction, to *net.TCPConn, at time.Time) bool {
	for {
		p.mu.Lock()
		open, held, wait, change := p.conns[to], p.held&d != 0, time.Until(at.Add(p.latency)), p.change
		p.mu.Unlock()
		var due <-chan time.Time
		switch {
		case !open:
			return false
		case held: // until something changes
		case wait <= 0:
			return true
		default:
			due = time.After(wait)
		}
		select {
		case <-change:
		case <-due:
		}
	}
}

var errCut = errors.New("waybill/testenv: proxy: cut")

func (p *Proxy) deliver(d Direction, to *net.TCPConn, data []byte) error {
	p.mu.Lock()
	left, limited := p.cutAfter[d]
	spent := limited && int64(len(data)) >= left
	if spent {
		data = data[:left]
		delete(p.cutAfter, d)
	} else if limited {
		p.cutAfter[d] = left - int64(len(data))
	}
	p.mu.Unlock()
	if _, err := to.Write(data); err != nil {
		return errCut
	}
	if spent {
		_ = to.CloseWrite() // so that the last bytes arrive before the end
		p.Cut()
		return errCut
	}
	return nil
}

func (p *Proxy) add(c *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.SetLinger(0)
		_ = c.Close()
		return false
	}
	p.conns[c] = true
	return true
}

// drop ends connections in order, without a reset.
func (p *Proxy) drop(conns ...*net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
	p.notify()
}
