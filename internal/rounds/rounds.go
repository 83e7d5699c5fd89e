// Package rounds counts the round trips between a program and a server that are one after the other.
package rounds

import (
	"fmt"
	"net"
	"runtime/metrics"
	"sync"
	"time"
)

// Proxy is a TCP proxy that counts such round trips. It collects the bytes of clients until these have nothing more to
// do without an answer. Then all of it passes, and that is a round: if a round trip takes long beside all else, the
// rounds take the time. They do not depend on the speed of the machine, unless it is so busy that a client looks idle
// and is not. The bytes of servers pass at once.
type Proxy struct {
	upstream string
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[*conn]bool
	rounds int
	free   bool      // everything passes at once
	last   time.Time // something was sent, or done
	flush  time.Time // the latest round began
	closed chan struct{}
}

// conn is a connection of a client. The mutex of its Proxy guards it.
type conn struct {
	down, up net.Conn
	waits    []byte // the client has sent it in this round
	passes   []byte // it is on its way to the server
	pass     chan struct{}
	asked    bool // something passed, and no answer came
}

const (
	// quiet is how long neither side sends anything when a round ends.
	quiet = 3 * time.Millisecond
	// patience is how long a round waits for a server that has not answered. Some questions have no answer.
	patience = 20 * time.Millisecond
)

// Start starts a proxy before the address upstream (host:port), without rounds at first. The caller must Close it.
func Start(upstream string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the proxy outlives no test
	if err != nil {
		return nil, fmt.Errorf("waybill/rounds: %w", err)
	}
	r := &Proxy{upstream: upstream, listener: l, conns: map[*conn]bool{}, free: true, closed: make(chan struct{})}
	r.wg.Go(r.accept)
	r.wg.Go(r.turn)
	return r, nil
}

// Addr returns the address that clients connect to.
func (r *Proxy) Addr() string { return r.listener.Addr().String() }

// Count returns how many rounds there were.
func (r *Proxy) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rounds
}

// Begin begins rounds. Before and after them everything passes at once.
func (r *Proxy) Begin() { r.set(false) }

// End ends them.
func (r *Proxy) End() { r.set(true) }

func (r *Proxy) set(free bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.free = free; free {
		r.pass()
	}
}

// Busy says that the client does something, and is not idle.
func (r *Proxy) Busy() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Now()
}

// Close ends the proxy and its connections.
func (r *Proxy) Close() {
	_ = r.listener.Close()
	close(r.closed)
	r.mu.Lock()
	for c := range r.conns {
		_, _ = c.down.Close(), c.up.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *Proxy) accept() {
	for {
		down, err := r.listener.Accept()
		if err != nil {
			return
		}
		up, err := net.DialTimeout("tcp", r.upstream, 5*time.Second) //nolint:noctx // it has a limit
		if err != nil {
			_ = down.Close()
			continue
		}
		c := &conn{down: down, up: up, pass: make(chan struct{}, 1)}
		r.mu.Lock()
		r.conns[c] = true
		r.mu.Unlock()
		r.wg.Go(func() { r.write(c) })
		r.wg.Go(func() { r.carry(c, down, r.sent) })
		r.wg.Go(func() { r.carry(c, up, r.answered) })
	}
}

// carry reads, and gives it to take, until the connection ends.
func (r *Proxy) carry(c *conn, from net.Conn, take func(*conn, []byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			take(c, buf[:n])
		}
		if err != nil {
			r.mu.Lock()
			if r.conns[c] {
				delete(r.conns, c)
				c.send() // such as a goodbye
				close(c.pass)
			}
			r.mu.Unlock()
			_ = c.down.Close()
			return
		}
	}
}

func (r *Proxy) sent(c *conn, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = time.Now()
	c.waits = append(c.waits, data...)
	if r.free && r.conns[c] {
		c.send()
	}
}

// send lets the waiting bytes pass.
func (c *conn) send() {
	c.passes, c.waits = append(c.passes, c.waits...), c.waits[:0]
	select {
	case c.pass <- struct{}{}:
	default:
	}
}

// write writes the bytes that pass, until the connection ends.
func (r *Proxy) write(c *conn) {
	for open := true; open; {
		_, open = <-c.pass
		r.mu.Lock()
		data := c.passes
		c.passes = nil
		r.mu.Unlock()
		_, _ = c.up.Write(data)
	}
	_ = c.up.Close()
}

func (r *Proxy) answered(c *conn, data []byte) {
	r.mu.Lock()
	r.last, c.asked = time.Now(), false
	r.mu.Unlock()
	_, _ = c.down.Write(data)
}

// pass lets everything pass. mu is held.
func (r *Proxy) pass() {
	for c := range r.conns {
		if len(c.waits) > 0 {
			c.asked = true
			c.send()
		}
	}
	r.flush = time.Now()
	r.last = r.flush
}

// turn ends each round.
func (r *Proxy) turn() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.closed:
			return
		}
		if !processIdle() {
			r.Busy()
			continue
		}
		r.mu.Lock()
		if r.over(time.Now()) {
			r.pass()
			r.rounds++
		}
		r.mu.Unlock()
	}
}

// over reports whether the round is over. mu is held.
func (r *Proxy) over(now time.Time) bool {
	waits, asked := false, false
	for c := range r.conns {
		waits = waits || len(c.waits) > 0
		asked = asked || c.asked && len(c.waits) == 0
	}
	return !r.free && waits && now.Sub(r.last) >= quiet && (!asked || now.Sub(r.flush) >= patience)
}

// processIdle reports whether no other goroutine of this process runs or could.
func processIdle() bool {
	s := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}, {Name: "/sched/goroutines/running:goroutines"}}
	metrics.Read(s)
	return s[0].Value.Uint64() == 0 && s[1].Value.Uint64() <= 1
}
