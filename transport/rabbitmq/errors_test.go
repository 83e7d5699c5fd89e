package rabbitmq_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// RL-06: the broker's answers, and their classes for a message that was sent alone.
func TestClasses(t *testing.T) {
	t.Parallel()
	server := func(code int, text string) *amqp.Error { return &amqp.Error{Code: code, Reason: text, Server: true} }
	for _, c := range []struct {
		err     *amqp.Error
		blames  bool // it closed a channel because of a message
		class   waybill.Class
		reason  waybill.Reason
		misconf bool
	}{
		{server(404, "NOT_FOUND - no exchange 'waybill' in vhost '/'"), true, waybill.ClassOutage, "", true},
		{
			server(403, "ACCESS_REFUSED - write access to exchange 'waybill' in vhost '/' refused for user 'a'"), true, waybill.ClassOutage,
			"", true,
		},
		{
			server(403, "ACCESS_REFUSED - write access to topic 'a.b' in exchange 'waybill' in vhost '/' refused for user 'a'"), true,
			waybill.ClassPermanent, waybill.ReasonForbidden, false,
		},
		{
			server(406, "PRECONDITION_FAILED - message size 5 is larger than configured max size 4"), true, waybill.ClassPermanent,
			waybill.ReasonTooLarge, false,
		},
		{
			server(406, "PRECONDITION_FAILED - message size 5 larger than max size 4"), true, waybill.ClassPermanent,
			waybill.ReasonTooLarge, false,
		},
		{server(311, "CONTENT_TOO_LARGE"), true, waybill.ClassPermanent, waybill.ReasonTooLarge, false},
		{server(406, "PRECONDITION_FAILED - invalid expiration 'x'"), true, waybill.ClassRejected, waybill.ReasonRejected, false},
		{server(501, "FRAME_ERROR"), true, waybill.ClassRejected, waybill.ReasonRejected, false},
		{server(502, "SYNTAX_ERROR"), true, waybill.ClassRejected, waybill.ReasonRejected, false},
		{server(540, "NOT_IMPLEMENTED"), true, waybill.ClassRejected, waybill.ReasonRejected, false},
		{err: server(530, "NOT_ALLOWED - number of channels opened for user 'a' has reached the maximum allowed user limit of (1)")},
		{err: server(320, "CONNECTION_FORCED - broker forced connection closure")},
		{err: server(506, "RESOURCE_ERROR")},
		{err: server(541, "INTERNAL_ERROR")},
		{err: &amqp.Error{Code: 501, Reason: "EOF"}}, // the driver's own words for a lost connection
		{err: amqp.ErrClosed},
		{err: nil},
	} {
		if got := rabbitmq.ClosedByMessage(c.err); got != c.blames {
			t.Errorf("%v: blames %t", c.err, got)
		}
		if !c.blames {
			continue
		}
		err := rabbitmq.MessageError(c.err, "waybill", "a.b")
		if waybill.ClassOf(err) != c.class || waybill.ReasonOf(err) != c.reason || errors.Is(err, waybill.ErrMisconfigured) != c.misconf {
			t.Errorf("%v: class %s, reason %q, misconfigured %t", c.err, waybill.ClassOf(err), waybill.ReasonOf(err),
				errors.Is(err, waybill.ErrMisconfigured))
		}
		if !errors.Is(err, c.err) {
			t.Errorf("%v hides the broker's error", err)
		}
	}
	for _, c := range []struct {
		err     error
		misconf bool
	}{
		{amqp.ErrCredentials, true},
		{amqp.ErrVhost, true},
		{server(403, "ACCESS_REFUSED"), true},
		{server(530, "NOT_ALLOWED - vhost x not found"), true},
		{x509.UnknownAuthorityError{}, true},
		{tls.RecordHeaderError{}, true},
		{io.EOF, false},
		{server(320, "CONNECTION_FORCED"), false},
		{context.DeadlineExceeded, false},
	} {
		err := rabbitmq.DialError(c.err)
		if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) != c.misconf {
			t.Errorf("connect, %v: class %s, misconfigured %t", c.err, waybill.ClassOf(err), errors.Is(err, waybill.ErrMisconfigured))
		}
	}
	for code, misconf := range map[int]bool{406: true, 403: true, 404: true, 405: true, 530: true, 541: false, 320: false} {
		if err := rabbitmq.DeclareErr("queue \"q\"", server(code, "x")); errors.Is(err, waybill.ErrMisconfigured) != misconf ||
			!strings.Contains(err.Error(), `queue "q"`) {
			t.Errorf("declare, %d: %v", code, err)
		}
	}
}

// TR-08: errors show an example URL, and never a password.
func TestURLErrors(t *testing.T) {
	t.Parallel()
	broker := testenv.RabbitMQ(t)
	host := hostOf(t, broker.URL)
	for _, url := range []string{
		"", "amqp://", "http://u:hunter2@h/", "amqp://u:hunter2@h:port/", "amqp://u:hunt/er2@h/", "amqp://u:hunter2%zz@h",
		"amqp://u:hunter2 @h/", "://hunter2", "amqp://u:hunter2@127.0.0.1:1/",
		"amqp://nobody:hunter2@" + host + "/", strings.Replace(broker.URL, "@", "hunter2@", 1), broker.URL + "hunter2",
	} {
		bus, err := rabbitmq.Dial(t.Context(), url, rabbitmq.Options{Logger: quiet()})
		if err == nil {
			_ = bus.Close(t.Context())
			t.Errorf("%q was accepted", url)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") && !strings.HasSuffix(url, "hunter2") || strings.Contains(err.Error(), "er2@") {
			t.Errorf("the error holds the password: %v", err)
		}
		if !errors.Is(err, waybill.ErrInvalid) && waybill.ClassOf(err) != waybill.ClassOutage {
			t.Errorf("%v", err)
		}
		t.Log(err)
	}
	if _, err := rabbitmq.Dial(t.Context(), broker.URL, rabbitmq.Options{
		Connection: rabbitmq.ConnectionOptions{TLS: &tls.Config{MinVersion: tls.VersionTLS12}, Heartbeat: -1},
		Window:     -1, MaxBodyBytes: -1, Exchange: "amq.x", QueueType: "x",
	}); err == nil ||
		strings.Count(err.Error(), ";") < 5 {
		t.Errorf("not all problems are listed: %v", err)
	}
}

// Tests that need a broker of their own share one: a start takes five seconds of CPU. The last one kills it.
func TestOwnBroker(t *testing.T) { //nolint:tparallel // in this order
	t.Parallel()
	certs := testenv.NewTLS(t)
	issuer := newTokenIssuer(t)
	broker := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{
		TLS: certs, Plugins: []string{"rabbitmq_auth_backend_oauth2"},
		Config: append([]string{"max_message_size = 100000"}, issuer.config...),
	})
	t.Run("left as it is", func(t *testing.T) {
		for name, test := range map[string]func(t *testing.T){
			"TLS":         func(t *testing.T) { t.Helper(); testTLS(t, broker, certs) },
			"TLS names":   func(t *testing.T) { t.Helper(); testTLSNames(t, broker, certs) },
			"OAuth 2":     func(t *testing.T) { t.Helper(); testOAuth2(t, broker, issuer) },
			"suspects":    func(t *testing.T) { t.Helper(); testSuspects(t, broker) },
			"rabbitmqctl": func(t *testing.T) { t.Helper(); testImportByRabbitmqctl(t, broker) },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	t.Run("refused alone", func(t *testing.T) { testRefusedAlone(t, broker) })
	t.Run("alarm at a start", func(t *testing.T) { testAlarmAtStart(t, broker) })
	t.Run("trouble", func(t *testing.T) {
		tier.Nightly(t, "the broker hangs and is killed: 15 s")
		testBrokerTrouble(t, broker)
	})
}

// vhost returns a virtual host on broker, which ends with it.
func vhost(t *testing.T, broker *testenv.RabbitMQServer) *testenv.MQ {
	t.Helper()
	mq, err := broker.OpenVHost(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return mq
}

// TR-08: own authority and client certificate; a missing one is a misconfiguration.
func testTLS(t *testing.T, broker *testenv.RabbitMQServer, certs *testenv.TLS) {
	t.Helper()
	good, err := certs.Client()
	if err != nil {
		t.Fatal(err)
	}
	bus := dial(t, broker.TLSURL("/"), rabbitmq.Options{Connection: rabbitmq.ConnectionOptions{TLS: good}})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	if err := bus.Publish(t.Context(), envelopes(100, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for _, d := range receive(t, r, 20) {
		settle(t, r, core.AckDone(d))
	}
	files := url.Values{"cacertfile": {certs.CAFile}, "certfile": {certs.ClientCertFile}, "keyfile": {certs.ClientKeyFile}}
	byURL := dial(t, broker.TLSURL("/")+"?"+files.Encode(), rabbitmq.Options{})
	if err := byURL.Publish(t.Context(), envelopes(1, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	files.Set("keyfile", certs.CAFile)
	_, err = rabbitmq.Dial(t.Context(), broker.TLSURL("/")+"?"+files.Encode(), rabbitmq.Options{})
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "keyfile") {
		t.Errorf("a key file without a key: %v", err)
	}
	shared, err := rabbitmq.DialConfig(t.Context(), broker.TLSURL("/"), amqp.Config{TLSClientConfig: good})
	if err != nil {
		t.Fatal(err)
	}
	if !shared.ConnectionState().HandshakeComplete {
		t.Error("a shared connection has no TLS")
	}
	_ = shared.Close()
	anonymous, stranger := good.Clone(), good.Clone()
	anonymous.Certificates, stranger.RootCAs = nil, x509.NewCertPool()
	for name, cfg := range map[string]*tls.Config{
		"no client certificate": anonymous, "unknown authority": stranger,
		"system's authorities": nil,
	} {
		_, err := rabbitmq.Dial(t.Context(), broker.TLSURL("/"), rabbitmq.Options{Connection: rabbitmq.ConnectionOptions{TLS: cfg}, Logger: quiet()})
		if err == nil {
			t.Errorf("%s: connected", name)
		} else if !errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("%s: not named a misconfiguration: %v", name, err)
		}
	}
}

// RL-06: a server that accepts and never answers the TLS handshake is an outage, when the caller's context ends.
func TestTLSWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = c.Read(make([]byte, 1)) // it begins the handshake
			cancel()
			_ = c.Close()
		}
	}()
	_, err = rabbitmq.Dial(ctx, "amqps://u:p@"+l.Addr().String()+"/", rabbitmq.Options{Logger: quiet()})
	if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("%v", err)
	}
}

// TR-08: a connection that is lost before it is open is an outage. It says nothing about the user.
func TestConnectionLostInAHandshake(t *testing.T) {
	t.Parallel()
	broker := testenv.RabbitMQ(t)
	proxy := testenv.NewProxy(t, hostOf(t, broker.URL))
	dial := func(what string) {
		bus, err := rabbitmq.Dial(t.Context(), proxy.URL(broker.URL), rabbitmq.Options{
			Logger:         quiet(),
			ConnectTimeout: 300 * time.Millisecond,
		})
		if err == nil {
			_ = bus.Close(t.Context())
			t.Errorf("%s: it connected", what)
		} else if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, n := range []int64{1, 8, 9, 100, 300, 400} { // protocol header, start-ok, tune-ok, open
		proxy.CutAfter(testenv.Up, n)
		dial(fmt.Sprintf("cut after %d bytes to the broker", n))
	}
	proxy.Blackhole(testenv.Down)
	dial("no answer")
	proxy.Heal()
	proxy.Latency(100 * time.Millisecond)
	dial("an answer too late")
}
