package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// A connection that is lost is opened again by the next call that needs one, not by a goroutine of its own. So an idle
// process does not storm a broker, and each error of the attempt has a caller who learns it.

// link is one connection. It is opened when it is needed, and again after a loss. Publishing and consuming have a link
// each, since a broker that is short of memory blocks every connection that publishes as a whole.
type link struct {
	name     string
	target   target
	opts     Options
	borrowed bool          // the connection is the caller's
	closing  chan struct{} // closed by Transport.Close
	opening  chan struct{} // capacity 1: held while connecting
	next     int           // of target.endpoints, to be tried; guarded by opening

	mu       sync.Mutex // guards the fields below
	conn     *conn      // the latest one, which may have ended
	failures int        // attempts to connect that failed in a row
	retryAt  time.Time  // no attempt before
}

// conn is an open connection and its known state. While the broker blocks it, reason and blocked say so: blocked is
// closed then, and replaced by an open channel afterwards.
type conn struct {
	*amqp.Connection
	out      *batchConn // nil on a caller's connection
	endpoint string     // "" on a caller's connection

	mu      sync.Mutex
	reason  string        // why it is blocked
	blocked chan struct{} // closed while the broker blocks the connection
	gone    chan struct{} // closed when the connection has ended
}

func newConn(c *amqp.Connection, out *batchConn, endpoint string) *conn {
	return &conn{Connection: c, out: out, endpoint: endpoint, blocked: make(chan struct{}), gone: make(chan struct{})}
}

func newLink(name string, to target, opts Options, closing chan struct{}) *link {
	l := &link{name: name, target: to, opts: opts, closing: closing, opening: make(chan struct{}, 1)}
	if n := len(to.endpoints); n > 0 {
		l.next = rand.IntN(n) // to spread the load
	}
	return l
}

// get returns the open connection, connecting if there is none. One caller connects at a time, and the others wait for
// its result. It waits for the back-off of earlier failures, so that many callers do not storm a broker that starts.
func (l *link) get(ctx context.Context) (*conn, error) {
	if c := l.current(); c != nil {
		return c, nil
	}
	if l.borrowed {
		return nil, outage("connect", errors.New("the connection passed to New is closed: "+
			"make a new transport with a new connection, or use Dial, which reconnects"))
	}
	select {
	case l.opening <- struct{}{}:
		defer func() { <-l.opening }()
	case <-ctx.Done():
		return nil, outage("connect", context.Cause(ctx))
	}
	// Another caller may have connected while this one waited for its turn.
	if c := l.current(); c != nil {
		return c, nil
	}
	if err := l.backOff(ctx); err != nil {
		return nil, err
	}
	c, as, err := l.dial(ctx)
	if err := l.opened(c, err); err != nil {
		return nil, err
	}
	go l.keepSecret(context.WithoutCancel(ctx), c, as)
	return c, nil
}

// current returns the connection if it is open.
func (l *link) current() *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn
	}
	return nil
}

func (l *link) backOff(ctx context.Context) error {
	l.mu.Lock()
	wait := time.Until(l.retryAt)
	l.mu.Unlock()
	if wait <= 0 {
		wait = 0
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-l.closing:
		return outage("connect", waybill.ErrClosed)
	case <-ctx.Done():
		return outage("connect", context.Cause(ctx))
	case <-t.C:
	}
	select {
	case <-l.closing:
		return outage("connect", waybill.ErrClosed)
	default:
		return nil
	}
}

// opened records the outcome of an attempt to connect. A connection that opens after the transport was closed is closed
// again.
func (l *link) opened(c *conn, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failures++
		b := waybill.Backoff{Base: 100 * time.Millisecond, Cap: max(l.opts.ReconnectMax, 100*time.Millisecond), Attempts: -1}
		d, _, _ := b.Next(l.failures, err)
		l.retryAt = time.Now().Add(min(d, l.opts.ReconnectMax))
		return dialError(err)
	}
	select {
	case <-l.closing:
		go func() { _ = c.Close() }()
		return outage("connect", waybill.ErrClosed)
	default:
	}
	if l.conn != nil || l.failures > 0 {
		l.opts.Logger.Info("connected again", "event", "rabbitmq.connected", "link", l.name,
			"endpoint", c.endpoint, "failed_attempts", l.failures)
	}
	l.conn, l.failures = c, 0
	go c.watch(l)
	return nil
}

// watch follows the connection until it ends. It reads every notification: the driver waits for a full channel.
func (c *conn) watch(l *link) {
	blocks := c.NotifyBlocked(make(chan amqp.Blocking, 8))
	closed := c.NotifyClose(make(chan *amqp.Error, 1))
	defer close(c.gone)
	for b := range blocks { // closed with the connection
		c.setBlocked(b)
		if b.Active {
			l.opts.Logger.Warn("the broker blocks the connection", "event", "rabbitmq.blocked", "link", l.name, "cause", b.Reason)
		} else {
			l.opts.Logger.Info("the broker unblocked the connection", "event", "rabbitmq.unblocked", "link", l.name)
		}
	}
	if err, ok := <-closed; ok && err != nil {
		l.opts.Logger.Warn("the connection is lost", "event", "rabbitmq.lost", "link", l.name, "endpoint", c.endpoint, "error", err)
	}
}

func (c *conn) setBlocked(b amqp.Blocking) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := isClosed(c.blocked)
	switch {
	case b.Active && !was:
		close(c.blocked)
	case !b.Active && was:
		c.blocked = make(chan struct{})
	}
	c.reason = b.Reason
}

// whenBlocked returns a channel that is closed while the broker blocks the connection.
func (c *conn) whenBlocked() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocked
}

func (c *conn) blockedError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("the broker blocks publishers: %s", c.reason)
}

// channel opens a channel. The driver's call has no context: one that ctx ends is left behind, and its channel closed
// when it comes.
func (c *conn) channel(ctx context.Context) (*amqp.Channel, error) {
	var ch *amqp.Channel
	err := await(ctx, func() (err error) {
		ch, err = c.Channel()
		return err
	}, func() {
		if ch != nil {
			_ = ch.Close()
		}
	})
	if err != nil {
		return nil, channelError(err)
	}
	return ch, nil
}

// close closes the connection: with a handshake within ctx, else at once.
func (l *link) close(ctx context.Context) {
	c := l.current()
	if c == nil || l.borrowed {
		return
	}
	deadline, ok := ctx.Deadline()
	if limit := time.Now().Add(l.opts.ConnectTimeout); !ok || deadline.After(limit) {
		deadline = limit
	}
	_ = await(ctx, func() error { return c.CloseDeadline(deadline) }, nil)
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
