package rabbitmq_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

func hosts(list ...string) rabbitmq.ConnectionOptions { return rabbitmq.ConnectionOptions{Hosts: list} }

// RM-10: one endpoint is dead at the start, another dies under load: the next one is used at once, without a back-off,
// and nothing is lost or left open.
func TestFailOver(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	var nodes []*testenv.Proxy
	for range 3 {
		nodes = append(nodes, testenv.NewProxy(t, hostOf(t, mq.URL)))
	}
	nodes[0].Refuse()
	var log sharedtest.Log
	opts := rabbitmq.Options{Connection: hosts(nodes[1].Addr(), nodes[2].Addr()), PublishConnections: 1, ReconnectMax: 50 * time.Millisecond, Logger: log.Logger(slog.LevelInfo)}
	for range 5 { // wherever it begins
		if err := dial(t, nodes[0].URL(mq.URL), opts).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	bus := dial(t, nodes[0].URL(mq.URL), opts)
	if d := bus.Describe(); fmt.Sprintf("%s:%d", d.Address, d.Port) != nodes[0].Addr() {
		t.Errorf("it describes itself as %+v", d)
	}
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, Prefetch: 100})
	log.Take()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // load
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				bus.Publish(t.Context(), []waybill.Envelope{envelope(fmt.Sprintf("load-%d", i), "a")})
			}
		}
	}()
	for round := range 6 {
		dead, alive := nodes[1+round%2], nodes[2-round%2]
		if err := alive.Accept(); err != nil {
			t.Fatal(err)
		}
		dead.Refuse()
		dead.Cut()
		e := envelope(fmt.Sprintf("round-%d", round), "a")
		patience.Until(t, "it is published", func() bool { return bus.Publish(t.Context(), []waybill.Envelope{e}).FirstErr() == nil })
		for seen := false; !seen; {
			d := receive(t, r, 1)[0]
			_ = r.Settle(t.Context(), []core.Ack{core.AckDone(d)}) // may be stale
			seen = d.Envelope.ID == e.ID
		}
	}
	close(stop)
	<-stopped
	patience.Until(t, "two connections are left", func() bool {
		names, err := mq.Connections(t.Context(), mq.VHost)
		return err == nil && len(names) == 2
	})
	text := log.String()
	for _, want := range []string{
		"event=rabbitmq.lost link=publish endpoint=" + nodes[1].Addr(), "event=rabbitmq.lost link=consume endpoint=" + nodes[2].Addr(),
		"event=rabbitmq.connected link=publish endpoint=" + nodes[1].Addr(), "event=rabbitmq.connected link=consume endpoint=" + nodes[2].Addr(),
		"event=rabbitmq.endpoint_failed", "endpoint=" + nodes[0].Addr(),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the log does not say %s:\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "event=rabbitmq.connected") && !strings.Contains(line, "failed_attempts=0") {
			t.Errorf("it backed off: %s", line)
		}
	}
}

// RM-10: an error names every endpoint. It is a misconfiguration only if all of them say so.
func TestNoEndpointCanBeUsed(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	other, dead := testenv.NewProxy(t, hostOf(t, mq.URL)), "127.0.0.1:1"
	wrong := mq.URLFor("nobody", password)
	for _, c := range []struct {
		second        string
		misconfigured bool
	}{{dead, false}, {other.Addr(), true}} {
		_, err := rabbitmq.Dial(t.Context(), wrong, rabbitmq.Options{Connection: hosts(c.second), Logger: quiet()})
		if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) != c.misconfigured {
			t.Errorf("%s: %v", c.second, err)
		}
		for _, want := range []string{"none of 2 endpoints", hostOf(t, mq.URL) + ": misconfigured: the broker refused the user", c.second + ": "} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%v\ndoes not say %s", err, want)
			}
		}
		if strings.Contains(fmt.Sprint(err), password) {
			t.Errorf("the error holds the password: %v", err)
		}
	}
}

// RM-10: all that is wrong with the hosts is said at once, and no part of them is shown.
func TestHostsAreChecked(t *testing.T) {
	t.Parallel()
	bad := []string{
		"", "amqp://h", "u:hunter2@h", "h/v", "h:0", "h:65536", "h:x", "a b", "[::1", "same", "same:5672", "h", "[::1]:x",
	}
	_, err := rabbitmq.Dial(t.Context(), "amqp://h", rabbitmq.Options{Lazy: true, Connection: hosts(bad...)})
	if !errors.Is(err, waybill.ErrInvalid) || strings.Contains(err.Error(), "hunter2") {
		t.Fatal(err)
	}
	for i, want := range []string{10: "is listed twice", 11: "is the URL's host", 12: "is neither"} {
		if i < 9 {
			want = "is neither a host nor host:port"
		}
		if want != "" && !strings.Contains(err.Error(), fmt.Sprintf("Connection.Hosts[%d]: %s", i, want)) {
			t.Errorf("%v\ndoes not say that %q %s", err, bad[i], want)
		}
	}
	if n := strings.Count(err.Error(), "Connection.Hosts["); n != len(bad)-1 {
		t.Errorf("%d problems: %v", n, err)
	}
	err = rabbitmq.Options{Connection: hosts(make([]string, 17)...)}.Validate()
	if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "17 hosts; at most 16") {
		t.Error(err)
	}
	if err := (rabbitmq.Options{Connection: hosts("h", "h:5671", "::1", "[::2]", "[::3]:5671", "fe80::1%eth0")}).Validate(); err != nil {
		t.Error(err)
	}
}

// RM-10: with TLS the broker must be who the endpoint's name says.
func testTLSNames(t *testing.T, broker *testenv.RabbitMQServer, certs *testenv.TLS) {
	t.Helper()
	cfg, err := certs.Client()
	if err != nil {
		t.Fatal(err)
	}
	var name atomic.Value
	cfg.ServerName = ""
	cfg.VerifyConnection = func(s tls.ConnectionState) error {
		name.Store(s.ServerName)
		return nil
	}
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	url := strings.Replace(broker.TLSURL("/"), hostOf(t, broker.TLSURL("/")), dead.Addr().String(), 1)
	dial(t, url, rabbitmq.Options{
		Connection:     rabbitmq.ConnectionOptions{TLS: cfg, Hosts: []string{fmt.Sprintf("localhost:%d", broker.TLSPort)}},
		ConnectTimeout: time.Minute,
	})
	if name.Load() != "localhost" {
		t.Errorf("the broker was asked for %v", name.Load())
	}
}
