package rabbitmq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/transport/rabbitmq/internal/tlserr"
)

// dial opens a connection to the first endpoint that can be used. It begins with the one after the last that it
// tried, and tries each once.
func (l *link) dial(ctx context.Context) (*conn, Credentials, error) {
	uri, err := amqp.ParseURI(l.target.url)
	if err != nil {
		return nil, Credentials{}, err
	}
	props := amqp.NewConnectionProperties()
	props.SetClientConnectionName(l.opts.Connection.Name + " " + l.name)
	cfg := amqp.Config{Heartbeat: l.opts.Connection.Heartbeat, Properties: props}
	as, err := l.credentials(ctx)
	if err != nil {
		return nil, as, err
	}
	if l.target.credentials != nil {
		cfg.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: as.User, Password: as.Password}}
	}
	var failed dialErrors
	for range l.target.endpoints {
		at := l.target.endpoints[l.next]
		l.next = (l.next + 1) % len(l.target.endpoints)
		uri.Host = at.host
		c, err := l.dialEndpoint(ctx, at.String(), uri, cfg)
		if err == nil {
			l.logFailed(ctx, failed, at)
			return c, as, nil
		}
		failed = append(failed, dialFailure{at, err})
		if ctx.Err() != nil {
			break
		}
	}
	return nil, as, failed.err()
}

// credentials returns what Connection.Credentials returns, and nothing without it.
func (l *link) credentials(ctx context.Context) (Credentials, error) {
	if l.target.credentials == nil {
		return Credentials{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.opts.ConnectTimeout)
	defer cancel()
	return l.target.credentials.get(ctx)
}

// dialEndpoint opens a connection to addr. TLS is ours and not the driver's. So a burst is encrypted in one piece, and
// we see the alert by which the broker refuses a client's certificate. With TLS 1.3 the alert comes after the
// handshake, when the driver may only report a closed connection. The layers, from the network up: TCP, TLS, batchConn
// with its filter of header frames, the driver. An error of the driver is replaced by the first read error below it
// where the driver hides or makes up the cause.
func (l *link) dialEndpoint(ctx context.Context, addr string, uri amqp.URI, cfg amqp.Config) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.opts.ConnectTimeout)
	defer cancel()
	var out *batchConn
	began := time.Now()
	stop := func() bool { return true }
	cfg.Dial = func(string, string) (net.Conn, error) {
		var d net.Dialer
		raw, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("cannot reach %s: %w", addr, err)
		}
		// for the handshakes; the driver takes it away
		_ = raw.SetDeadline(time.Now().Add(l.opts.ConnectTimeout))
		stop = context.AfterFunc(ctx, func() { _ = raw.Close() })
		stream := raw
		if uri.Scheme == "amqps" {
			if stream, err = l.opts.secure(ctx, raw, uri); err != nil {
				_ = raw.Close()
				return nil, err
			}
		}
		out = newBatchConn(stream)
		return out, nil
	}
	ac, err := amqp.DialConfig("amqp"+strings.TrimPrefix(l.target.url, uri.Scheme), cfg)
	if !stop() && err == nil {
		_ = ac.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		if out != nil {
			_ = out.Close()
			cause := out.readError()
			if cause != nil && (errors.Is(err, amqp.ErrClosed) || tlserr.Is(cause) || madeUp(err) && !refusal(cause, time.Since(began))) {
				err = cause
			}
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer in time: %w", err)
		}
		return nil, err
	}
	out.in.limit.Store(int64(ac.Config.FrameSize))
	return newConn(ac, out, addr), nil
}

// madeUp reports an error that the driver makes up when a handshake ends without an answer of the broker.
func madeUp(err error) bool { return err == amqp.ErrCredentials || err == amqp.ErrVhost } //nolint:errorlint // these very ones

// refusalDelay is less than the three seconds after which RabbitMQ closes the connection of a user that it refuses.
const refusalDelay = 2500 * time.Millisecond

// refusal reports that the other side closed the connection so long after the attempt began that the broker may have
// refused the user. A connection that was cut, or took too long, says nothing about the user.
func refusal(err error, after time.Duration) bool {
	return after >= refusalDelay && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET))
}

// secure returns raw with TLS on it, after the handshake.
func (o *Options) secure(ctx context.Context, raw net.Conn, uri amqp.URI) (net.Conn, error) {
	cfg, err := o.tlsClient(uri)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, cfg)
	return c, c.HandshakeContext(ctx)
}

// tlsClient returns the configuration for one connection: Connection.TLS, or the settings of the URL's query as the
// driver understands them.
func (o *Options) tlsClient(uri amqp.URI) (*tls.Config, error) {
	c := o.Connection.TLS.Clone()
	if c == nil {
		c = &tls.Config{ServerName: uri.ServerName, MinVersion: tls.VersionTLS12}
		if uri.CACertFile != "" {
			pem, err := os.ReadFile(uri.CACertFile)
			if err != nil {
				return nil, misconfigured("connect", "the URL's cacertfile: %w", err)
			}
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM(pem) {
				return nil, misconfigured("connect", "the URL's cacertfile: %s holds no certificate in PEM form", uri.CACertFile)
			}
		}
		if uri.CertFile != "" || uri.KeyFile != "" {
			pair, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
			if err != nil {
				return nil, misconfigured("connect", "the URL's certfile and keyfile: %w", err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
	}
	if c.ServerName == "" {
		c.ServerName = uri.Host
	}
	return c, nil
}
