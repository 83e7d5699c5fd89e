//go:build unix

package outages_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// OP-17: the broker's disk is full, so that it blocks who publishes. The relay waits, consumers empty the queue. When
// there is space again, all go on.
func TestBrokerDiskFull(t *testing.T) {
	nightly(t)
	t.Parallel()
	mq := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{})
	for range times() {
		d := onRabbitMQ(t, member{Broker: mq.AMQPURL("/")})
		d.start(consumes)
		d.start(relays)
		d.produce(2)
		d.flows("messages flow", 50)
		if err := mq.RaiseDiskAlarm(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.until("messages wait in the outbox", func() bool { return d.unsettled() > 200 })
		d.until("the log says why", func() bool { return strings.Contains(d.log.String(), "blocks publishers") })
		if err := mq.ClearDiskAlarm(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.flows("messages flow again", 50)
		d.ends(excused{})
		d.nobodyWasBlamed()
	}
}

// OP-17: the password at the broker changes while all run. Open connections live on; once they are cut, that is an
// outage until the program knows the new one.
func TestBrokerPasswordRotated(t *testing.T) {
	nightly(t)
	t.Parallel()
	for range times() {
		mq := testenv.RabbitMQ(t)
		user := strings.ReplaceAll(mq.VHost, "waybill-test", "app")
		secret := newSecret("first-secret")
		secret.user.Store(user)
		rotate := func(to string) {
			t.Helper()
			if err := mq.CreateUser(t.Context(), user, to); err != nil {
				t.Fatal(err)
			}
		}
		rotate("first-secret")
		t.Cleanup(func() { _ = mq.DeleteUser(context.WithoutCancel(t.Context()), user) })
		if err := mq.SetPermissions(t.Context(), mq.VHost, user, ".*", ".*", ".*"); err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(mq.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.User = nil
		d := onRabbitMQ(t, member{Broker: u.String(), connect: rabbitmq.ConnectionOptions{Credentials: secret.ofBroker}})
		d.start(consumes)
		d.start(relays)
		d.produce(2)
		d.flows("messages flow", 50)
		rotate("second-secret")
		d.flows("open connections live on", 50)
		d.until("the old password is refused", func() bool {
			if open, err := mq.Connections(t.Context(), mq.VHost); err == nil && len(open) > 0 {
				_, _ = mq.CloseConnections(t.Context(), mq.VHost)
			}
			return strings.Contains(d.log.String(), "refused the user or its password")
		})
		d.until("messages wait in the outbox", func() bool { return d.unsettled() > 50 })
		secret.set("second-secret")
		d.flows("messages flow with the new one", 50)
		d.ends(excused{})
		d.nobodyWasBlamed()
		if text := d.log.String(); strings.Contains(text, "first-secret") || strings.Contains(text, "second-secret") {
			t.Error("the log holds a password")
		}
	}
}

// OP-17: a broker is lost for good, with the messages on it. One of another version takes its place, with the exported
// definitions. A message that was in the outbox arrives; only messages that were on the old broker are lost.
func TestBrokerReplaced(t *testing.T) {
	nightly(t)
	t.Parallel()
	const vhost, user, password = "shop", "shop", "shop-secret"
	newer := newerRoot()
	t.Logf("the new broker is of %q", newer)
	for range times() {
		begin := func(root string) *testenv.RabbitMQServer {
			mq := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{Root: root})
			if err := mq.CreateUser(t.Context(), user, password); err != nil {
				t.Fatal(err)
			}
			if err := mq.CreateVHost(t.Context(), vhost); err != nil {
				t.Fatal(err)
			}
			return mq
		}
		old := begin("/")
		line := testenv.NewProxy(t, old.Addr())
		d := onRabbitMQ(t, member{Broker: "amqp://" + user + ":" + password + "@" + line.Addr() + "/" + vhost})
		definitions, err := d.topology().Definitions(vhost, topology.Users{Relay: user, Consumer: user})
		if err != nil {
			t.Fatal(err)
		}
		prepare := func(mq *testenv.RabbitMQServer) {
			t.Helper()
			if err := mq.Do(t.Context(), http.MethodPost, "/api/definitions", json.RawMessage(definitions), nil); err != nil {
				t.Fatal(err)
			}
			// The consumer declares, which it may since it is the same user.
			if err := mq.SetPermissions(t.Context(), vhost, user, ".*", ".*", ".*"); err != nil {
				t.Fatal(err)
			}
		}
		prepare(old)
		d.start(relays)
		d.produce(2)
		ch := testenv.Channel(t, strings.Replace(d.base.Broker, line.Addr(), old.Addr(), 1))
		settled := func() map[string]int {
			return d.ids(d.out, "SELECT s.id FROM staged s WHERE NOT EXISTS (SELECT FROM waybill.waybill_outbox o WHERE o.id = s.id)")
		}
		d.until("messages are on the old broker, and settled", func() bool { return ready(t, ch) >= 50 && len(settled()) >= 50 })
		line.Refuse()
		line.Cut()
		old.Kill()
		d.until("messages wait in the outbox", func() bool { return d.unsettled() > 50 })
		fresh := begin(newer)
		prepare(fresh)
		// The relay has long settled what the old broker confirmed, and can publish no more.
		lost := map[string]bool{}
		for id := range settled() {
			lost[id] = true
		}
		line.SetUpstream(fresh.Addr())
		if err := line.Accept(); err != nil {
			t.Fatal(err)
		}
		d.start(consumes)
		d.flows("messages flow on the new one", 100)
		d.ends(excused{lost: lost})
		d.nobodyWasBlamed()
		if t.Logf("%d were on the old broker", len(lost)); len(lost) < 50 {
			t.Error("too few to prove anything")
		}
	}
}

// newerRoot returns the root file system with a broker of another version, "/" if there is none.
func newerRoot() string {
	if root := os.Getenv(testenv.Root); root != "" {
		return root
	}
	found, _ := filepath.Glob("/var/lib/waybill-testenv/*/.ready") // where scripts/newer keeps it
	if len(found) == 0 {
		return "/"
	}
	return filepath.Dir(found[0])
}

// ready is how many messages wait in the queue.
func ready(t *testing.T, ch *amqp.Channel) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(queueName, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}
