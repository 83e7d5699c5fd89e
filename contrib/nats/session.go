package nats

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
)

// The client reconnects by itself after a lost connection. But it gives a connection up for good after an error of the
// server that it does not know. One of these is the answer to a message above max_payload, which the server can have
// lowered since the client connected. So a transport that has dialled makes another connection then. That one knows the
// new limit, and so the message fails alone when it is published again.

// session is a connection, with its JetStream and its subscription.
type session struct {
	nc         *nats.Conn
	js         jetstream.JetStream
	advisories *nats.Subscription
	gone       chan struct{} // closed when the client has given the connection up
}

// connect makes a connection; ctx bounds the wait for it.
func connect(ctx context.Context, address string, set []nats.Option) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	connected := make(chan result, 1)
	go func() {
		nc, err := nats.Connect(address, set...)
		connected <- result{nc, err}
	}()
	select {
	case r := <-connected:
		if r.err != nil {
			return nil, classify("connect", r.err)
		}
		return r.nc, nil
	case <-ctx.Done():
		go func() {
			if r := <-connected; r.nc != nil {
				r.nc.Close()
			}
		}()
		return nil, classify("connect", context.Cause(ctx))
	}
}

// newSession prepares nc.
func (t *Transport) newSession(nc *nats.Conn) (*session, error) {
	s := &session{nc: nc, gone: make(chan struct{})}
	var err error
	if s.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1<<20), jetstream.WithPublishAsyncTimeout(t.opts.Timeout)); err != nil {
		return nil, classify("new", err)
	}
	s.advisories, err = nc.Subscribe("$JS.EVENT.ADVISORY.CONSUMER.*."+t.opts.Bus+".>", func(*nats.Msg) { t.routes.stale.Store(true) })
	if err != nil {
		return nil, classify("new", err)
	}
	return s, nil
}

// follow waits until the client has given up the connection of s, and makes another one, until the transport is closed.
func (t *Transport) follow(s *session) {
	defer close(t.followed)
	for s != nil {
		given := s.nc.StatusChanged(nats.CLOSED)
		if !s.nc.IsClosed() {
			select {
			case <-given:
			case <-t.done:
			}
		}
		s.nc.RemoveStatusListener(given)
		close(s.gone)
		s.js.CleanupPublisher()
		s = t.another()
	}
}

// another returns a session on a new connection, which is the current one from now on. It returns nil if the transport
// is closed, or the connection was the caller's.
func (t *Transport) another() *session {
	if t.dialled == "" || t.ended() {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // it ends with the transport
	defer cancel()
	go func() {
		select {
		case <-t.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		nc, err := connect(ctx, t.dialled, t.connection)
		if err == nil {
			var s *session
			if s, err = t.newSession(nc); err == nil && t.use(s) {
				return s
			}
			nc.Close()
		}
		timer := time.NewTimer(reconnectWait)
		select {
		case <-t.done:
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// use makes s the current session, unless the transport is closed. Receivers take it up at their next call.
func (t *Transport) use(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended() {
		return false
	}
	t.current.Store(s)
	for r := range t.receivers {
		r.signal()
	}
	return true
}

// lost is the error of a call on a connection that the client has given up.
func (s *session) lost(op string) *waybill.Error {
	cause := s.nc.LastError()
	if cause == nil {
		cause = nats.ErrConnectionClosed
	}
	return outage(op, fmt.Errorf("the server has closed the connection; the result is unknown (%w)", cause))
}

// bounds are the limits of a message: those of a connection's server, and of the stream.
type bounds struct {
	bytes   int    // of a message with its headers
	setting string // whose value that is
}

// bounds returns the limits as they are now. A limit that leaves no room for headers is an error.
func (t *Transport) bounds(s *session) (bounds, error) {
	b := bounds{int(s.nc.MaxPayload()), "the server's max_payload"}
	if n := t.maxMsgSize; n > 0 && n < b.bytes {
		b = bounds{n, "the stream's max_msg_size"}
	}
	if b.bytes < 2*headerRoom {
		return b, misconfigured("publish", "%s is %d, and the headers of a message may take half of that: raise it to %d at least", b.setting, b.bytes, 2*headerRoom)
	}
	return b, nil
}

// room returns how many bytes a message has, as Envelope.Size counts them.
func (b bounds) room() int { return b.bytes - headerRoom }

func (b bounds) tooLarge(e *waybill.Envelope, size int) error {
	return fail("publish", waybill.ClassPermanent, waybill.ReasonTooLarge, fmt.Errorf(
		"topic %q: the message has %d bytes, with its headers %d; %s is %d, which leaves %d of them: raise it and connect again, or send a reference",
		e.Topic, e.Size(), size, b.setting, b.bytes, b.room()))
}
