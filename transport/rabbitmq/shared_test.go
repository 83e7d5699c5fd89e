package rabbitmq_test

// An application may share its own connection with a transport (New). What comes to the transport's queues must not
// end it: the application has channels of its own there.

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// share opens a connection as an application does that shares it.
func share(t *testing.T, url string) *amqp.Connection {
	t.Helper()
	conn, err := rabbitmq.DialConfig(t.Context(), url, amqp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if conn.IsClosed() {
			t.Error("the application's connection has ended")
		}
		_ = conn.Close()
	})
	return conn
}

// CO-24: a connection that a message could end publishes only. Nothing is taken from a queue on it, so the message that
// is there leaves the connection alone.
func TestBareConnectionDoesNotReceive(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	subscribe(t, dial(t, mq.URL, rabbitmq.Options{}), core.Subscription{Queue: "other", Bindings: []string{"other"}})
	ch := testenv.Channel(t, mq.URL)
	for _, queue := range []string{"q", "q.dlq"} {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := ch.PublishWithContext(t.Context(), "", queue, true, false, amqp.Publishing{MessageId: "deep", Headers: deep()}); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := amqp.Dial(mq.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	bus, err := rabbitmq.New(conn, rabbitmq.Options{})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, bus)
	_, subscribed := bus.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"q"}})
	_, listed := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 1)
	_, purged := bus.PurgeParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true})
	for what, err := range map[string]error{"subscribe": subscribed, "list": listed, "purge": purged} {
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "open it with rabbitmq.DialConfig") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := bus.Publish(t.Context(), envelopes(1, "other")).FirstErr(); err != nil {
		t.Error(err)
	}
	if conn.IsClosed() {
		t.Error("the application's connection has ended")
	}
}

// A shared connection has the TLS, the dialler and the properties of the application. What cannot work is refused
// before anything is dialled, and no error holds the URL.
func TestDialConfig(t *testing.T) {
	t.Parallel()
	dialled := 0
	count := func(string, string) (net.Conn, error) { dialled++; return nil, errors.New("no way") }
	const secret = "hunter2"
	for url, c := range map[string]struct {
		config amqp.Config
		want   string
	}{
		"amqp://u:" + secret + "@h h/":  {amqp.Config{Dial: count}, "url: cannot be read"},
		"http://u:" + secret + "@h/":    {amqp.Config{Dial: count}, "url: the scheme"},
		"amqp://u:" + secret + "@tls/":  {amqp.Config{Dial: count, TLSClientConfig: new(tls.Config)}, "TLSClientConfig: is set, but"},
		"amqp://u:" + secret + "@back/": {amqp.Config{Dial: count, Recovery: &amqp.Recovery{}}, "Recovery: New refuses"},
	} {
		_, err := rabbitmq.DialConfig(t.Context(), url, c.config)
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	}
	if dialled > 0 {
		t.Errorf("dialled %d times", dialled)
	}
	_, err := rabbitmq.DialConfig(t.Context(), "amqps://u:"+secret+"@h/", amqp.Config{Dial: func(_, addr string) (net.Conn, error) {
		return nil, errors.New("asked for " + addr)
	}})
	if err == nil || !strings.Contains(err.Error(), "asked for h:5671") || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		if c, err := silent.Accept(); err == nil {
			_, _ = c.Read(make([]byte, 1)) // it begins the handshake
			cancel()
			_, _ = c.Read(make([]byte, 100))
			_ = c.Close()
		}
	}()
	if _, err := rabbitmq.DialConfig(ctx, "amqp://"+silent.Addr().String(), amqp.Config{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
