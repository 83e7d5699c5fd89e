package rabbitmq

// An application may share its own connection with a transport. One message whose headers the driver cannot read would
// end that connection for all, again and again. So a shared connection that receives is opened here, with the
// application's configuration, and the driver reads through the same filter as on connections of Dial.

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// handshakeTime bounds the opening of a shared connection, as in the driver.
const handshakeTime = 30 * time.Second

// DialConfig opens a connection of the driver as amqp091.DialConfig does, for an application that shares it through
// New. No message ends this connection: headers that the driver cannot read are left out. The caller closes it. ctx
// bounds the opening, as do 30 s. A configuration with the driver's experimental recovery is refused, as in New. An
// error never holds the URL.
func DialConfig(ctx context.Context, address string, config amqp.Config) (*amqp.Connection, error) {
	const op = "waybill/rabbitmq: dial"
	opts := Options{Connection: ConnectionOptions{TLS: config.TLSClientConfig}}
	var problems []string
	if s := checkURL(address, opts); s != "" {
		problems = append(problems, strings.Replace(s, "Connection.TLS:", "TLSClientConfig:", 1))
	}
	if config.Recovery != nil {
		problems = append(problems, "Recovery: New refuses a connection that the driver opens again; leave it nil, or use Dial")
	}
	if err := waybill.Invalid(op, problems...); err != nil {
		return nil, err
	}
	uri, err := amqp.ParseURI(address)
	if err != nil {
		return nil, waybill.Invalid(op, "url: the driver cannot read it; it must look like "+exampleURL)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	dial := config.Dial
	if dial == nil {
		dial = func(network, addr string) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, addr) }
	}
	var g *guard
	stop := func() bool { return true }
	config.Dial = func(network, _ string) (net.Conn, error) { // TLS is ours, since the filter reads plain frames
		stream, err := dial(network, net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)))
		if err != nil {
			return nil, err
		}
		raw := stream
		stop = context.AfterFunc(ctx, func() { _ = raw.Close() })
		if uri.Scheme == "amqps" {
			if stream, err = opts.secure(ctx, raw, uri); err != nil {
				_ = raw.Close()
				return nil, err
			}
		}
		g = &guard{Conn: stream, in: headerFrames{in: bufio.NewReaderSize(stream, readBuffer)}}
		return g, nil
	}
	c, err := amqp.DialConfig("amqp"+strings.TrimPrefix(address, uri.Scheme), config)
	if !stop() && err == nil {
		_ = c.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		if g != nil {
			_ = g.Close()
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer in time: %w: %w", context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	g.in.limit.Store(int64(c.Config.FrameSize))
	return c, nil
}

// guard is a connection whose reader gets only header frames that it can read.
type guard struct {
	net.Conn
	in headerFrames // the driver's one reader uses it
}

func (g *guard) Read(p []byte) (int, error) { return g.in.Read(p) }

// LocalAddr tells New that the connection is guarded: the driver hands the address on as it is.
func (g *guard) LocalAddr() net.Addr { return guardedAddr{g.Conn.LocalAddr()} }

// ConnectionState is for the driver's method of that name.
func (g *guard) ConnectionState() tls.ConnectionState {
	if c, ok := g.Conn.(*tls.Conn); ok {
		return c.ConnectionState()
	}
	return tls.ConnectionState{}
}

type guardedAddr struct{ net.Addr }

// guarded reports whether DialConfig opened c.
func guarded(c *amqp.Connection) bool {
	_, ok := c.LocalAddr().(guardedAddr)
	return ok
}

// mayReceive returns an error if a message could end the connection of the application.
func (t *Transport) mayReceive(op string) error {
	if !t.bare {
		return nil
	}
	return misconfigured(op, "one message whose headers the driver cannot read would end the application's connection: "+
		"open it with rabbitmq.DialConfig in place of amqp091.Dial, or use rabbitmq.Dial")
}
