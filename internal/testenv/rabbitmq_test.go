package testenv_test

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
)

func TestRabbitMQPerTestVirtualHost(t *testing.T) {
	t.Parallel()
	for range 3 {
		ch := channel(t, testenv.RabbitMQ(t).URL)
		// Exclusive names would clash if the virtual hosts were one.
		if _, err := ch.QueueDeclare("only-mine", false, false, true, false, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRabbitMQManagement(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	ctx := t.Context()

	user := "user-" + mq.VHost
	if err := mq.CreateUser(ctx, user, "secret"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mq.DeleteUser(context.WithoutCancel(ctx), user) })
	if err := mq.SetPermissions(ctx, mq.VHost, user, "", "^allowed$", ""); err != nil {
		t.Fatal(err)
	}
	restricted := channel(t, mq.URLFor(user, "secret"))
	_, err := restricted.QueueDeclare("forbidden", false, false, false, false, nil)
	if amqpErr := new(amqp.Error); !errors.As(err, &amqpErr) || amqpErr.Code != amqp.AccessRefused {
		t.Errorf("declare without permission: %v", err)
	}

	if err := mq.SetPolicy(ctx, mq.VHost, "short", "^short", "queues", map[string]any{"max-length": 1, "overflow": "reject-publish"}); err != nil {
		t.Fatal(err)
	}
	ch := channel(t, mq.URL)
	if _, err := ch.QueueDeclare("short", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // a policy takes a moment
		if publish(t, ch, "short") {
			return errors.New("the full queue still confirms")
		}
		return nil
	})
	if err := mq.DeletePolicy(ctx, mq.VHost, "short"); err != nil {
		t.Fatal(err)
	}

	only := testenv.RabbitMQ(t)
	closed := dial(t, only.URL).NotifyClose(make(chan *amqp.Error, 1))
	if n, err := only.CloseConnections(ctx, only.VHost); err != nil || n != 1 {
		t.Fatalf("closed %d connections, %v", n, err)
	}
	if err := receive(t, closed); err == nil || err.Code != amqp.ConnectionForced {
		t.Errorf("closed with %v", err)
	}
}

func TestRabbitMQOwnBroker(t *testing.T) { //nolint:tparallel // the subtests share a broker that is paused
	tier.Nightly(t, "pauses, kills and restarts a broker: 15 s")
	t.Parallel()
	certs := testenv.NewTLS(t)
	s := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{TLS: certs, Config: []string{"heartbeat = 7"}})
	ctx := t.Context()
	conn := dial(t, s.AMQPURL("/"))
	if got := conn.Config.Heartbeat; got != 7*time.Second {
		t.Errorf("heartbeat %v, want the configured 7s", got)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("kept", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	if !publish(t, ch, "kept") {
		t.Fatal("not confirmed")
	}
	onDisk := time.After(testenv.DefinitionsOnDisk)

	t.Run("TLS", func(t *testing.T) {
		config, err := certs.Client()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := amqp.DialTLS(s.TLSURL("/"), config)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		config.Certificates = nil
		if conn, err := amqp.DialTLS(s.TLSURL("/"), config); err == nil {
			_ = conn.Close()
			t.Error("connected without a client certificate")
		}
		stranger, err := testenv.NewTLS(t).Client()
		if err != nil {
			t.Fatal(err)
		}
		if conn, err := amqp.DialTLS(s.TLSURL("/"), stranger); err == nil {
			_ = conn.Close()
			t.Error("connected with another authority")
		}
	})

	t.Run("pause", func(t *testing.T) {
		s.Pause()
		short := amqp.Config{Dial: amqp.DefaultDial(500 * time.Millisecond)}
		if conn, err := amqp.DialConfig(s.AMQPURL("/"), short); err == nil {
			_ = conn.Close()
			t.Error("a paused broker answered")
		}
		s.Resume()
		dial(t, s.AMQPURL("/"))
	})

	<-onDisk
	// Restart kills a running one first.
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	q, err := channel(t, s.AMQPURL("/")).QueueDeclarePassive("kept", true, false, false, false, nil)
	if err != nil || q.Messages != 1 {
		t.Errorf("%d messages kept, %v", q.Messages, err)
	}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience.For(patience.Limit)):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func dial(t *testing.T, url string) *amqp.Connection {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func channel(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	ch, err := dial(t, url).Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// publish sends a persistent message to a queue and says whether the broker confirmed it.
func publish(t *testing.T, ch *amqp.Channel, queue string) bool {
	t.Helper()
	confirm, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	acked, err := confirm.WaitContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return acked
}
