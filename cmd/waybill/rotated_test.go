package main

// The passwords of brokers are rotated as those of databases are: the file changes, and nothing is restarted.

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// OP-02: a password of RabbitMQ that was rotated, at the broker and in its file, needs neither a signal nor a restart.
func TestRotatedBrokerPassword(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	user := "relay-" + mq.VHost
	setPassword := func(password string) {
		t.Helper()
		if err := mq.CreateUser(t.Context(), user, password); err != nil {
			t.Fatal(err)
		}
	}
	setPassword("first-pw")
	t.Cleanup(func() { _ = mq.DeleteUser(context.WithoutCancel(t.Context()), user) })
	if err := mq.SetPermissions(t.Context(), mq.VHost, user, ".*", ".*", ".*"); err != nil {
		t.Fatal(err)
	}
	db := testenv.Postgres(t)
	pool := migrated(t, db.DSN)
	depth := queue(t, mq.URL, "waybill")
	secret := filepath.Join(t.TempDir(), "url")
	rewrite(t, secret, mq.URLFor(user, "first-pw")+"\n")
	r := start(t, newBench(t).app(), "relay", "--config", write(t, "stores:\n  shop:\n    kind: postgres\n    url: "+withPool(db.DSN)+
		"\ntransports:\n  bus:\n    kind: rabbitmq\n    url: {file: "+secret+"}\nrelays:\n  a: {}\n"))
	defer func() {
		if t.Failed() {
			t.Log(r.log.String())
		}
	}()
	stagePG(t, pool, 1)
	patience.Until(t, "the first is published", func() bool { return depth() == 1 })
	setPassword("second-pw")
	refused := func() bool { return strings.Contains(r.log.String(), "refused the user or its password") }
	_, _ = mq.CloseConnections(t.Context(), mq.VHost)
	stagePG(t, pool, 1)
	patience.Until(t, "the old password is refused", func() bool {
		if !refused() { // a connection that the broker did not list yet is still open
			_, _ = mq.CloseConnections(t.Context(), mq.VHost)
		}
		return refused()
	})
	stagePG(t, pool, 1)
	rewrite(t, secret, mq.URLFor(user, "second-pw"))
	patience.Until(t, "the others are published", func() bool { return depth() == 3 })
	if text := r.log.String(); strings.Contains(text, "first-pw") || strings.Contains(text, "second-pw") {
		t.Errorf("tells a password:\n%s", text)
	}
}

// OP-02: the same on Redis.
func TestRotatedRedisPassword(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	db := testenv.Postgres(t)
	pool := migrated(t, db.DSN)
	ask := func(args ...any) {
		t.Helper()
		if err := server.Do(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	user := func(password string) {
		t.Helper()
		ask("ACL", "SETUSER", "relay", "reset", "on", ">"+password, "~*", "&*", "+@all")
	}
	as := func(password string) string { return "redis://relay:" + password + "@" + server.Addr() + "/0" }
	user("first-pw")
	secret := filepath.Join(t.TempDir(), "url")
	rewrite(t, secret, as("first-pw")+"\n")
	r := start(t, newBench(t).app(), "relay", "--config", write(t, "stores:\n  shop:\n    kind: postgres\n    url: "+withPool(db.DSN)+
		"\ntransports:\n  bus:\n    kind: redis\n    url: {file: "+secret+"}\nrelays:\n  a: {}\n"))
	defer func() {
		if t.Failed() {
			t.Log(r.log.String())
		}
	}()
	gone := func() bool { return outboxRows(t, pool) == 0 }
	bus, err := redisstreams.Dial(t.Context(), server.URL(), redisstreams.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bus.Close(context.WithoutCancel(t.Context())) })
	// makes the queue
	sub, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "all", Bindings: []string{"#"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close(context.WithoutCancel(t.Context())) })
	stagePG(t, pool, 1)
	patience.Until(t, "the first is published", gone)
	user("second-pw")
	ask("CLIENT", "KILL", "USER", "relay")
	stagePG(t, pool, 1)
	patience.Until(t, "the old password is refused", func() bool { return strings.Contains(r.log.String(), "user or password are wrong") })
	rewrite(t, secret, as("second-pw"))
	patience.Until(t, "the second is published", gone)
	if text := r.log.String(); strings.Contains(text, "first-pw") || strings.Contains(text, "second-pw") {
		t.Errorf("tells a password:\n%s", text)
	}
}
