//go:build unix

package outages_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// expired is what Go says about a certificate whose time is over.
const expired = "certificate has expired or is not yet valid"

// OP-17: the certificate of the database expires, and open connections are cut. That is an outage whose error names the
// expiry. When the certificate is renewed, all go on.
func TestDatabaseCertificateExpires(t *testing.T) {
	nightly(t)
	t.Parallel()
	for range times() {
		certs := testenv.NewTLS(t)
		pg := testenv.OwnPostgres(t, testenv.PostgresOptions{TLS: certs})
		d := onRabbitMQ(t, member{DSN: pg.DSN("postgres")})
		admin := connect(t, pg)
		d.start(consumes)
		d.start(relays)
		d.produce(2)
		d.flows("messages flow", 50)
		renew := func(until time.Duration) {
			t.Helper()
			if err := certs.RenewServer(time.Now().Add(until)); err != nil {
				t.Fatal(err)
			}
			if err := pg.Reload(); err != nil {
				t.Fatal(err)
			}
		}
		renew(-time.Minute)
		d.until("new connections are refused", func() bool {
			conn, err := pgx.Connect(t.Context(), d.base.DSN)
			if err == nil {
				_ = conn.Close(t.Context())
			}
			return err != nil && strings.Contains(err.Error(), expired)
		})
		d.flows("open connections live on", 50)
		cut(t, admin)
		d.until("the log says why", func() bool { return strings.Contains(d.log.String(), expired) })
		err := d.o.Check(t.Context())
		if t.Log(err); err == nil || waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), expired) || !strings.Contains(err.Error(), "renew") {
			t.Errorf("class %s: %v", waybill.ClassOf(err), err)
		}
		renew(time.Hour)
		d.flows("messages flow again", 50)
		d.ends(excused{})
		d.nobodyWasBlamed()
	}
}

// OP-17: the same at the broker.
func TestBrokerCertificateExpires(t *testing.T) {
	nightly(t)
	t.Parallel()
	for range times() {
		certs := testenv.NewTLS(t)
		mq := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{TLS: certs})
		cfg, err := certs.Client()
		if err != nil {
			t.Fatal(err)
		}
		d := onRabbitMQ(t, member{Broker: mq.TLSURL("/"), connect: rabbitmq.ConnectionOptions{TLS: cfg}})
		d.start(consumes)
		d.start(relays)
		d.produce(2)
		d.flows("messages flow", 50)
		renew := func(until time.Duration) {
			t.Helper()
			if err := certs.RenewServer(time.Now().Add(until)); err != nil {
				t.Fatal(err)
			}
			if err := mq.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		renew(-time.Minute)
		d.flows("open connections live on", 50)
		if _, err := mq.CloseConnections(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		d.until("the log says why", func() bool { return strings.Contains(d.log.String(), expired) })
		bus, err := rabbitmq.Dial(t.Context(), d.base.Broker, rabbitmq.Options{Connection: d.base.connect, Logger: d.base.logger})
		if err == nil {
			_ = bus.Close(t.Context())
		}
		if t.Log(err); err == nil || waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), expired) || !strings.Contains(err.Error(), "renew") {
			t.Errorf("class %s: %v", waybill.ClassOf(err), err)
		}
		d.until("messages wait in the outbox", func() bool { return d.unsettled() > 200 })
		renew(time.Hour)
		d.flows("messages flow again", 50)
		d.ends(excused{})
		d.nobodyWasBlamed()
	}
}
