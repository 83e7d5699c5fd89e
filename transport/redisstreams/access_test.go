package redisstreams_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// TR-08: TLS with an authority and a client certificate of one's own; without them the error says what to do.
func TestTLS(t *testing.T) {
	t.Parallel()
	certs := testenv.NewTLS(t)
	server := testenv.OwnRedis(t, testenv.RedisOptions{TLS: certs})
	good, err := certs.Client()
	if err != nil {
		t.Fatal(err)
	}
	bus := dial(t, server.TLSURL(), redisstreams.Options{TLS: good})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, envelopes(1, "a")...)
	settle(t, r, core.AckDone(receive(t, r, 1)[0]))

	noCert, noCA, wrongName := good.Clone(), good.Clone(), good.Clone()
	noCert.Certificates, noCA.RootCAs, wrongName.ServerName = nil, nil, "elsewhere"
	for name, opts := range map[string]redisstreams.Options{
		"no client certificate": {TLS: noCert}, "unknown authority": {TLS: noCA}, "wrong name": {TLS: wrongName}, "system's authorities": {},
	} {
		// The alert of the server can be lost with the connection, which it resets: then it is asked again.
		patience.Until(t, name+": the error names Options.TLS", func() bool {
			_, err := redisstreams.Dial(t.Context(), server.TLSURL(), prepared(opts))
			if err == nil || !errors.Is(err, waybill.ErrMisconfigured) && !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("%s: %v", name, err)
			}
			return errors.Is(err, waybill.ErrMisconfigured) && strings.Contains(err.Error(), "Options.TLS")
		})
	}
	if _, err := redisstreams.Dial(t.Context(), server.URL(), prepared(redisstreams.Options{TLS: good})); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("Options.TLS would have no effect: %v", err)
	}
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	if _, err := redisstreams.New(client, redisstreams.Options{TLS: good}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("Options.TLS would have no effect: %v", err)
	}
}

// acl returns the rules of a user as docs/redis.md shows them, for a bus.
func acl(t *testing.T, user, bus string) []any {
	t.Helper()
	page, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ACL SETUSER ` + user + ` .*$`).FindString(string(page))
	if line == "" {
		t.Fatalf("docs/redis.md shows no user %s", user)
	}
	var out []any
	for word := range strings.FieldsSeq(strings.ReplaceAll(line, "{waybill}", "{"+bus+"}")) {
		out = append(out, word)
	}
	return out
}

// actAs gives server a user of docs/redis.md, and returns the address to connect as that user.
func actAs(t *testing.T, server *testenv.RedisServer, user, bus string) (url string) {
	t.Helper()
	if err := server.Do(t.Context(), acl(t, user, bus)...); err != nil {
		t.Fatal(err)
	}
	return strings.Replace(server.URL(), "redis://", "redis://"+user+":secret@", 1)
}

// workOf does with a queue all that a consumer can do. Its messages come from pub, with topic.
func workOf(t *testing.T, bus, pub *redisstreams.Transport, queue, topic string) {
	t.Helper()
	r := subscribe(t, bus, core.Subscription{Queue: queue, Bindings: []string{topic}})
	publish(t, pub, envelopes(6, topic)...)
	ds := receive(t, r, 6)
	renewer, _ := core.As[core.DeliveryRenewer](r)
	if err := renewer.RenewDeliveries(t.Context(), ds, time.Second).FirstErr(); err != nil {
		t.Error(err)
	}
	settle(t, r, core.AckDone(ds[0]), core.AckRetry(ds[1], time.Millisecond, nil), core.AckRetry(ds[2], 0, nil), core.AckRelease(ds[3]))
	settle(t, r, core.AckReject(ds[4], waybill.ReasonRejected, nil), core.AckReject(ds[5], waybill.ReasonRejected, nil))
	for _, d := range receive(t, r, 3) {
		settle(t, r, core.AckDone(d))
	}
	if n, err := bus.ParkedDepth(t.Context(), queue); n != 2 || err != nil {
		t.Error(n, err)
	}
	if list, err := bus.ListParked(t.Context(), queue, admin.ParkedFilter{}, 9); len(list) != 2 || err != nil {
		t.Error(list, err)
	}
	one := admin.ParkedRequest{Queue: queue, All: true, Limit: 1}
	if n, err := bus.ReplayParked(t.Context(), one); n != 1 || err != nil {
		t.Error(n, err)
	}
	if n, err := bus.PurgeParked(t.Context(), one); n != 1 || err != nil {
		t.Error(n, err)
	}
	settle(t, r, core.AckDone(receive(t, r, 1)[0]))
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	inOrder := subscribe(t, bus, core.Subscription{Queue: queue, Bindings: []string{topic}, InOrder: true})
	publish(t, pub, envelope("1", topic))
	settle(t, inOrder, core.AckDone(receive(t, inOrder, 1)[0]))
	if err := inOrder.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TR-08: the users of docs/redis.md can do their work and nothing else; a lacking right is named at the start.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	opts := prepared(redisstreams.Options{})
	bus, pub := dial(t, actAs(t, server, "billing", opts.Bus), opts), dial(t, actAs(t, server, "shop", opts.Bus), opts)
	workOf(t, bus, pub, "q", "a")
	subscribe(t, bus, core.Subscription{Queue: "bulk", Bindings: []string{"c"}})
	publish(t, pub, envelopes(many, "c")...)
	if _, err := pub.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"a"}}); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "docs/redis.md") {
		t.Errorf("a publisher may subscribe: %v", err)
	}
	for _, user := range []string{"shop", "billing"} {
		c := raw(t, actAs(t, server, user, opts.Bus))
		for _, forbidden := range [][]any{{"GET", "other"}, {"FLUSHALL"}, {"CONFIG", "GET", "*"}, {"KEYS", "*"}, {"DEL", "{" + opts.Bus + "}:queue:q"}} {
			if err := c.Do(t.Context(), forbidden...).Err(); !redis.HasErrorPrefix(err, "NOPERM") {
				t.Errorf("%s may %v: %v", user, forbidden, err)
			}
		}
	}
}

// TR-08: a passive consumer with the rights of docs/redis.md does its work on its queue. It can neither read, write,
// delete, settle nor bind anything of another queue. The same goes for a script of its own.
func TestServicesKeepApart(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	opts := prepared(redisstreams.Options{})
	all := dial(t, server.URL(), opts)
	subscribe(t, all, core.Subscription{Queue: "billing", Bindings: []string{"a"}})
	pay := subscribe(t, all, core.Subscription{Queue: "pay", Bindings: []string{"b"}})
	pub := dial(t, actAs(t, server, "shop", opts.Bus), opts)
	passive := opts
	passive.Passive = true
	url := actAs(t, server, "reader", opts.Bus)
	bus := dial(t, url, passive)
	workOf(t, bus, pub, "billing", "a")
	if _, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "pay", Bindings: []string{"b"}}); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("it may subscribe to the queue of another: %v", err)
	}
	publish(t, pub, envelope("true", "b"))
	c, key := raw(t, url), func(kind, queue string) string { return "{" + opts.Bus + "}:" + kind + ":" + queue }
	forbidden := [][]any{
		{"SADD", "{" + opts.Bus + "}:bindings", "x"},
		{"SET", "{" + opts.Bus + "}:bindings", "x"},
		{"SET", "{" + opts.Bus + "}:version", "x"},
		{"XADD", key("queue", "billing2"), "*", "data", "x"},
		{"KEYS", "*"},
		{"FLUSHALL"},
		{"DEL", key("queue", "billing")},
		{"SCRIPT", "KILL"},
		{"CONFIG", "GET", "*"},
		{"XGROUP", "DESTROY", key("queue", "billing"), "waybill"},
		{"MONITOR"},
	}
	for _, kind := range []string{"queue", "parked", "delayed"} {
		at := key(kind, "pay")
		forbidden = append(forbidden, []any{"XADD", at, "*", "data", "forged"}, []any{"XRANGE", at, "-", "+"}, []any{"XLEN", at}, []any{"XDEL", at, "1-1"},
			[]any{"XREAD", "STREAMS", at, "0"}, []any{"XREADGROUP", "GROUP", "waybill", "x", "STREAMS", at, ">"}, []any{"XACK", at, "waybill", "1-1"},
			[]any{"XCLAIM", at, "waybill", "x", "0", "1-1"}, []any{"SET", at, "x"})
	}
	forbidden = append(forbidden, []any{"ZADD", key("due", "pay"), "1", "x"}, []any{"XADD", key("wake", "pay"), "*", "a", "b"}, []any{"SET", key("active", "pay"), "x"})
	for _, words := range forbidden {
		if err := c.Do(t.Context(), words...).Err(); !redis.HasErrorPrefix(err, "NOPERM") {
			t.Errorf("it may %v: %v", words, err)
		}
		if err := c.Eval(t.Context(), "return redis.call(unpack(ARGV))", nil, words...).Err(); err == nil {
			t.Errorf("a script of its own may %v", words)
		}
	}
	ds := receive(t, pay, 1)
	if ds[0].Envelope.ID != "true" {
		t.Errorf("%s came first", ds[0].Envelope.ID)
	}
	settle(t, pay, core.AckDone(ds[0]))
}

// SE-03: a relay whose rule names the queues of its own topics, as docs/redis.md says, publishes to these. It puts
// nothing into the queue of another service, neither by a topic that is bound there nor by a command of its own.
func TestRelaysKeepToTheirQueues(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	opts := prepared(redisstreams.Options{})
	all := dial(t, server.URL(), opts)
	mail := subscribe(t, all, core.Subscription{Queue: "mail", Bindings: []string{"mails"}})
	pay := subscribe(t, all, core.Subscription{Queue: "pay", Bindings: []string{"payments"}})
	rules := acl(t, "shop", opts.Bus)
	named := 0
	for i, word := range rules {
		if word == "~{"+opts.Bus+"}:queue:*" {
			rules[i], named = "~{"+opts.Bus+"}:queue:mail", named+1
		}
	}
	if err := server.Do(t.Context(), rules...); err != nil || named != 1 {
		t.Fatal(rules, err)
	}
	url := strings.Replace(server.URL(), "redis://", "redis://shop:secret@", 1)
	evil := dial(t, url, opts)
	for _, n := range []int{1, many} {
		if err := evil.Publish(t.Context(), envelopes(n, "payments"))[n-1]; !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "docs/redis.md") {
			t.Errorf("%d messages for the queue of another: %v", n, err)
		}
	}
	c, key := raw(t, url), "{"+opts.Bus+"}:queue:pay"
	for _, words := range [][]any{{"XADD", key, "*", "data", "forged"}, {"XLEN", key}, {"XDEL", key, "1-1"}, {"XRANGE", "{" + opts.Bus + "}:queue:mail", "-", "+"}, {"SADD", "{" + opts.Bus + "}:bindings", "x"}} {
		if err := c.Do(t.Context(), words...).Err(); !redis.HasErrorPrefix(err, "NOPERM") {
			t.Errorf("it may %v: %v", words, err)
		}
		if err := c.Eval(t.Context(), "return redis.call(unpack(ARGV))", nil, words...).Err(); err == nil {
			t.Errorf("a script of its own may %v", words)
		}
	}
	publish(t, evil, envelope("mine", "mails"))
	publish(t, all, envelope("true", "payments"))
	for r, want := range map[core.Receiver]string{mail: "mine", pay: "true"} {
		d := receive(t, r, 1)[0]
		if d.Envelope.ID != want {
			t.Errorf("%s came first, want %s", d.Envelope.ID, want)
		}
		settle(t, r, core.AckDone(d))
	}
}

// TR-09: Passive makes nothing, and names all that is missing.
func TestPassive(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{})
	passive := opts
	passive.Passive = true
	bus := dial(t, url, passive)
	_, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"a", "b"}})
	for _, object := range []string{"}:queue:q\"", "\"waybill\"", "\"a\"", "\"b\""} {
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), object) {
			t.Errorf("%s: %v", object, err)
		}
	}
	subscribe(t, dial(t, url, opts), core.Subscription{Queue: "q", Bindings: []string{"a"}})
	if _, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"a", "b"}}); err == nil || strings.Contains(err.Error(), "\"a\"") {
		t.Error(err)
	}
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
}

// TR-08: with ConfirmAlways a server that does not sync is refused; with ConfirmReplicas a message without its replica
// is an outage, and no success.
func TestConfirm(t *testing.T) {
	t.Parallel()
	weak := testenv.OwnRedis(t, testenv.RedisOptions{Config: []string{"appendfsync everysec"}})
	always := prepared(redisstreams.Options{Confirm: redisstreams.ConfirmAlways})
	if _, err := redisstreams.Dial(t.Context(), weak.URL(), always); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "appendfsync") {
		t.Error(err)
	}
	primary := testenv.OwnRedis(t, testenv.RedisOptions{Config: []string{"repl-diskless-sync-delay 0"}})
	dial(t, primary.URL(), always)

	opts := prepared(redisstreams.Options{Confirm: redisstreams.ConfirmReplicas, Replicas: 1, Timeout: patience.For(time.Second)})
	bus := dial(t, primary.URL(), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	for _, n := range []int{1, many} {
		err := bus.Publish(t.Context(), envelopes(n, "a"))[n-1]
		if waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), "0 of 1 replicas") {
			t.Errorf("%d messages: %v", n, err)
		}
	}
	replica := testenv.OwnRedis(t, testenv.RedisOptions{})
	if err := replica.Do(t.Context(), "REPLICAOF", "127.0.0.1", primary.Port); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the replica confirms", func() bool { return bus.Publish(t.Context(), envelopes(1, "a"))[0] == nil })
	publish(t, bus, envelopes(many, "a")...)
	if err := bus.Publish(t.Context(), envelopes(1, "unbound"))[0]; !errors.Is(err, waybill.ErrUnroutable) {
		t.Error(err)
	}
	before := queueKeys{t, raw(t, replica.URL()), opts.Bus}.len("queue", "q")
	primary.Pause() // the replica has what was confirmed
	after := queueKeys{t, raw(t, replica.URL()), opts.Bus}.len("queue", "q")
	primary.Resume()
	if before < 2 || after != before {
		t.Errorf("the replica has %d, then %d messages", before, after)
	}
	receive(t, r, 2)
	replica.Pause()
	if err := bus.Publish(t.Context(), envelopes(1, "a"))[0]; waybill.ClassOf(err) != waybill.ClassOutage {
		t.Error(err)
	}
	replica.Resume()
}

// TR-08: WAITAOF, where the server has it; Redis 7.0 says that it has not.
func TestConfirmSynced(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{Config: []string{"appendfsync everysec"}})
	known, err := raw(t, server.URL()).Do(t.Context(), "COMMAND", "INFO", "WAITAOF").Slice()
	if err != nil {
		t.Fatal(err)
	}
	bus := dial(t, server.URL(), redisstreams.Options{Confirm: redisstreams.ConfirmSynced})
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	err = bus.Publish(t.Context(), envelopes(many, "a"))[0]
	if has := len(known) == 1 && known[0] != nil; has != (err == nil) || !has && !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("the server has WAITAOF: %t, and %v", has, err)
	}
}

// TR-08: Close closes what the transport opened, once; a client of the caller's stays open.
func TestClose(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	client := raw(t, url)
	opts := prepared(redisstreams.Options{})
	own := dial(t, url, opts)
	bus, err := redisstreams.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := bus.Subscribe(ctx, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel() // ends the receiver
	patience.Until(t, "the receiver ends", func() bool { _, err := r.Receive(t.Context(), 1); return errors.Is(err, waybill.ErrClosed) })
	for _, tr := range []*redisstreams.Transport{bus, own} {
		for range 2 {
			if err := tr.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := tr.Publish(t.Context(), envelopes(1, "a"))[0]; !errors.Is(err, waybill.ErrClosed) {
			t.Error(err)
		}
		if _, err := tr.ParkedDepth(t.Context(), "q"); !errors.Is(err, waybill.ErrClosed) {
			t.Error(err)
		}
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	// The consumer of a receiver that was closed is gone.
	if n, err := client.XInfoConsumers(t.Context(), "{"+opts.Bus+"}:queue:q", "waybill").Result(); len(n) != 0 || err != nil {
		t.Error(n, err)
	}
}
