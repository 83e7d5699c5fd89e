package cli_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// rabbit is a virtual host, a transport on it, and the settings of a configuration that knows the queues.
type rabbit struct {
	tb       testing.TB
	mq       *testenv.MQ
	bus      *rabbitmq.Transport
	settings []string
}

func newRabbit(tb testing.TB, queues ...string) *rabbit {
	tb.Helper()
	mq := testenv.RabbitMQ(tb)
	bus, err := rabbitmq.Dial(tb.Context(), mq.URL, rabbitmq.Options{Logger: quiet})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = bus.Close(context.WithoutCancel(tb.Context())) })
	r := &rabbit{tb, mq, bus, nil}
	r.configure(queues...)
	return r
}

// configure makes the settings. Each queue takes its own topics, and has one retry delay.
func (r *rabbit) configure(queues ...string) {
	r.tb.Helper()
	file := filepath.Join(r.tb.TempDir(), "waybill.yaml")
	var text strings.Builder
	text.WriteString("subscriptions:\n")
	for _, q := range queues {
		fmt.Fprintf(&text, "- queue: %s\n  bindings: [\"%s.#\"]\n  retry: {kind: schedule, delays: [5s]}\n", q, q)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		r.tb.Fatal(err)
	}
	r.settings = []string{"transports.mq.kind=rabbitmq", "transports.mq.url=" + r.mq.URL, "transports.mq.management_url=" + r.mq.ManagementURL, file}
}

func (r *rabbit) run(args ...string) answer {
	r.tb.Helper()
	return command(r.tb, r.settings[:3], append(args, "--config", r.settings[3])...)
}

// park parks messages with these bodies in queue q, with ids m1, m2 and so on.
func (r *rabbit) park(bodies ...string) core.Receiver {
	r.tb.Helper()
	sub := waybill.Subscription{Queue: "q", Bindings: []string{"q.#"}, Retry: waybill.RetryDelays(5 * time.Second)}
	receiver, err := r.bus.Subscribe(r.tb.Context(), core.SubscriptionOf(&sub))
	if err != nil {
		r.tb.Fatal(err)
	}
	r.tb.Cleanup(func() { _ = receiver.Close(context.WithoutCancel(r.tb.Context())) })
	for i, body := range bodies {
		id := fmt.Sprint("m", i+1)
		e := waybill.Envelope{ID: id, Source: "/shop", Topic: "q." + id, Type: "q", Time: time.Now(), Body: []byte(body), Key: "k" + id}
		if err := r.bus.Publish(r.tb.Context(), []waybill.Envelope{e}).FirstErr(); err != nil {
			r.tb.Fatal(err)
		}
		d := r.receive(receiver)
		if err := receiver.Settle(r.tb.Context(), []core.Ack{core.AckReject(d, waybill.ReasonRejected, errors.New("not json"))}).FirstErr(); err != nil {
			r.tb.Fatal(err)
		}
	}
	patience.Moving(r.tb, "all are parked", func() (string, bool) {
		n, err := r.bus.ParkedDepth(r.tb.Context(), "q")
		return fmt.Sprint(n, err), err == nil && n == len(bodies)
	})
	return receiver
}

func (r *rabbit) receive(from core.Receiver) *waybill.Delivery {
	r.tb.Helper()
	ctx, _ := patience.Context(r.tb.Context(), patience.Limit)
	for {
		if ds, err := from.Receive(ctx, 1); err != nil {
			r.tb.Fatal(err)
		} else if len(ds) > 0 {
			return ds[0]
		}
	}
}

// OP-15: without a queue, list counts the parked messages of each queue of the configuration, and names a missing one.
func TestDLQWithoutAQueue(t *testing.T) {
	t.Parallel()
	r := newRabbit(t, "q", "later")
	r.park("one", "two")
	a := r.run("dlq", "list").is(t, 0, "QUEUE", "later", "is missing: waybill topology declare makes it")
	if fields := strings.Fields(strings.Split(a.out, "\n")[1]); len(fields) != 2 || fields[0] != "q" || fields[1] != "2" {
		t.Errorf("%q", a.out)
	}
	queues := decode[struct {
		Queues []struct {
			Queue  string
			Parked *int
		}
	}](t, r.run("dlq", "list", "--json").is(t, 0)).Queues
	if len(queues) != 2 || queues[0].Parked == nil || *queues[0].Parked != 2 || queues[1].Parked != nil {
		t.Errorf("%+v", queues)
	}
	command(t, r.settings[:3], "dlq", "list").is(t, 2, "name a queue")
	r.run("dlq", "list", "--key", "k", "--limit", "5").is(t, 2, "name a queue, or leave out --key, --limit")
}

// OP-15 OP-01: parked messages are listed, shown, replayed, edited and purged at the broker.
func TestDLQ(t *testing.T) {
	t.Parallel()
	r := newRabbit(t, "q")
	receiver := r.park("one", "\xff\x00two", "three", "four")
	r.run("dlq", "list", "q").is(t, 0, "4 messages parked", "rejected: 4", "q.m1", "km1", "m4", "not json")
	r.run("dlq", "list", "q", "--limit", "2").is(t, 0, "there may be more")
	r.run("dlq", "list", "q", "--key", "km3", "--json").is(t, 0, `"id": "m3"`, `"parked": 4`)
	r.run("dlq", "list", "nobody").is(t, 3, "nobody")
	both := append(r.settings[:3:3], "stores.main.kind=sqlite", "stores.main.path="+filepath.Join(t.TempDir(), "main.db"))
	command(t, both, "migrate", "up").is(t, 0)
	command(t, both, "dlq", "list", "nobody").is(t, 3, "nobody", "if a store is the queue, give --store")
	command(t, both, "dlq", "list", "nobody", "--store", "main").is(t, 3, "nobody", "if it is at a broker, give --transport instead")
	r.run("dlq", "show", "q").is(t, 0, "id:         m1", "body: 3 bytes\none", "position:   1", "rejected", "not json")
	r.run("dlq", "show", "q", "m2").is(t, 0, "ff 00 74 77 6f")
	r.run("dlq", "show", "q", "--position", "3").is(t, 0, "three")
	r.run("dlq", "show", "q", "m9").is(t, 3, "queue q has no parked message that matches")
	r.run("dlq", "replay", "q").is(t, 2, "give --all")
	r.run("dlq", "replay", "q", "--id", "m9").is(t, 3)
	r.run("dlq", "replay", "q", "--all", "--dry-run").is(t, 0, "4 messages would be replayed")
	r.run("dlq", "replay", "q", "--id", "m1", "--progress").is(t, 0, "1 message replayed", "looked at")
	if d := r.receive(receiver); d.Envelope.ID != "m1" || string(d.Envelope.Body) != "one" || d.Attempt != 1 {
		t.Errorf("%+v", d)
	} else if err := receiver.Settle(t.Context(), []core.Ack{core.AckDone(d)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "body")
	r.run("dlq", "show", "q", "m2", "--body-to", file).is(t, 0)
	if body, err := os.ReadFile(file); err != nil || string(body) != "\xff\x00two" {
		t.Errorf("%q %v", body, err)
	}
	if err := os.WriteFile(file, []byte("repaired"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.run("dlq", "edit", "q", "m2").is(t, 2, "--body-file")
	r.run("dlq", "edit", "q", "--body-file", file).is(t, 2, "name a message")
	r.run("dlq", "edit", "q", "m9", "--body-file", file).is(t, 3)
	r.run("dlq", "edit", "q", "m2", "--body-file", file).is(t, 0, "1 message replayed")
	if d := r.receive(receiver); d.Envelope.ID != "m2" || string(d.Envelope.Body) != "repaired" {
		t.Errorf("%+v", d)
	}
	r.run("dlq", "purge", "q", "--id", "m3").is(t, 4, "delete for good what matches of 2 parked messages in queue q", "nobody can be asked")
	r.run("dlq", "purge", "q", "--id", "m3", "--dry-run").is(t, 0, "1 message would be deleted")
	r.run("dlq", "purge", "q", "--id", "m3", "--yes").is(t, 0, "1 message deleted")
	r.run("dlq", "purge", "q", "--all", "--yes", "--json").is(t, 0, `"changed": 1`)
	r.run("dlq", "list", "q").is(t, 0, "0 messages parked")
	r.run("dlq", "list", "q", "--limit", "0").is(t, 2, "--limit: 0 is not between")
	r.run("dlq", "list", "q", "--reason", "bad").is(t, 2, "choose of rejected")
	r.run("dlq", "list", "q", "--position", "0").is(t, 2, "less than 1")
	r.run("dlq", "list", "q", "--store", "x", "--transport", "mq").is(t, 2, "give --store or --transport")
}

// OP-15 OP-01: the same on a queue in the outbox of a store.
func TestDLQOfTable(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.stage(message("no", "a"), message("no", "b"), message("no", "c"))
	s.relayed()
	s.run("dlq", "list", "default").is(t, 0, "3 messages parked", "rejected: 3") // there is no transport
	s.run("dlq", "show", "default", "b", "--store", "shop").is(t, 0, "body of b")
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, []byte("repaired"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run("dlq", "edit", "default", "b", "--body-file", file, "--store", "shop").is(t, 0, "1 message replayed")
	s.run("show", "b").is(t, 0, "pending", "repaired")
	s.run("dlq", "replay", "default", "--id", "a").is(t, 0, "1 message replayed")
	s.run("dlq", "purge", "default", "--all", "--yes").is(t, 0, "1 message deleted")
	s.run("list", "--state", "abandoned").is(t, 0, "no record matches")
	s.run("topology", "print").is(t, 2, "has no transport")
}

// OP-01: the topology of the configuration is printed, declared, verified and exported.
func TestTopology(t *testing.T) {
	t.Parallel()
	r := newRabbit(t, "billing", "shipping", "old")
	r.run("topology", "print").is(t, 0, "exchange waybill.dlx.billing (direct, durable)", "queue billing.delay_5s (durable)", `bound to waybill with key "shipping.#"`)
	r.run("topology", "verify").is(t, 5, "OBJECT", `queue "billing"`, "missing", "differences")
	r.run("topology", "declare").is(t, 0, "declared for 3 subscriptions")
	r.run("topology", "verify").is(t, 0, "as it must be for 3 subscriptions")
	r.run("topology", "verify", "--json").is(t, 0, `"differences": []`)
	r.run("topology", "export").is(t, 2, `--format: "" is unknown: choose of definitions, terraform`)
	r.run("topology", "export", "--format", "terraform").is(t, 0, `resource "rabbitmq_queue" "billing_dlq"`).not(t, "rabbitmq_permissions")
	r.run("topology", "export", "--format", "terraform", "--relay", "shop-relay").is(t, 0, `resource "rabbitmq_permissions"`, `"shop-relay"`)
	r.run("topology", "export", "--format", "definitions", "--consumer", "billing", "--operator", "ops").is(t, 0, `"user": "billing"`, `"user": "ops"`, `"configure": "^$"`)
	var file struct{ Queues []struct{ Name string } }
	if err := json.Unmarshal([]byte(r.run("topology", "export", "--format", "definitions").is(t, 0).out), &file); err != nil || len(file.Queues) != 9 {
		t.Error(file, err)
	}
	r.run("topology", "gc").is(t, 0, "no queue is unused")

	// without the management API nothing can be compared
	r.settings[2] = "log.level=warn"
	r.run("topology", "verify").is(t, 2, "management_url")

	// a queue that is not ours and one that is in use stay; the empty ones go
	ch := testenv.Channel(t, r.mq.URL)
	if _, err := ch.QueueDeclare("foreign", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	e := waybill.Envelope{ID: "m", Source: "/shop", Topic: "shipping.x", Type: "x", Time: time.Now()}
	if err := r.bus.Publish(t.Context(), []waybill.Envelope{e}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r.configure("billing")
	const delays = "delay_5s: unused"
	r.run("topology", "gc", "--dry-run").is(t, 0, "shipping: unused", "shipping.dlq: unused", "shipping."+delays, "old: unused", "old."+delays)
	r.run("topology", "gc").is(t, 4, "delete of these 6 queues those that are empty", "nobody can be asked")
	r.run("topology", "gc", "--yes").is(t, 4, "shipping: stays: ", "1 messages", "shipping.dlq: deleted", "old: deleted", "old.delay_5s: deleted", "left alone: 1 queue")
	r.run("topology", "gc", "--dry-run", "--json").is(t, 0, `"unused": [
    "shipping"
  ]`)
	r.configure("shipping")
	r.run("topology", "verify", "--json").is(t, 5, "shipping.dlq", "shipping.delay_5s").not(t, `queue \"shipping\" to exchange \"waybill\" with`)
	if q, err := ch.QueueDeclarePassive("foreign", true, false, false, false, nil); err != nil {
		t.Error(q, err)
	}
	if q, err := ch.QueueDeclarePassive("billing", true, false, false, false, nil); err != nil {
		t.Error(q, err)
	}
}

// A command that changes the broker is in the audit record of the store beside it, with the declared objects and the
// deleted queues. If the record cannot be written nothing is changed.
// OP-21.
func TestTopologyIsRecorded(t *testing.T) {
	t.Parallel()
	r, s := newRabbit(t, "billing", "old"), newShop(t)
	run := func(args ...string) answer {
		t.Helper()
		return command(t, append(slices.Clone(s.settings), r.settings[:3]...), append(args, "--config", r.settings[3])...)
	}
	run("topology", "print").is(t, 0)
	run("topology", "verify").is(t, 5)
	run("audit", "log").is(t, 0).not(t, "topology")
	run("topology", "declare").is(t, 0)
	r.configure("billing")
	run("topology", "gc", "--dry-run").is(t, 0)
	run("topology", "gc", "--yes").is(t, 0)
	lines := decode[[]struct {
		Phase, Action, Target, Result string
		IDs                           []string
	}](t, run("audit", "log", "--json").is(t, 0))
	if len(lines) != 4 || lines[3].Phase != "begin" || lines[3].Action != "topology declare" || lines[3].Target != "transport mq" ||
		lines[0].Phase != "end" || lines[0].Action != "topology gc" || lines[0].Result != "3 queues deleted" || len(lines[0].IDs) != 3 {
		t.Errorf("%+v", lines)
	}
	s.transact(func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "ALTER TABLE waybill_outbox_audit RENAME TO elsewhere")
		return err
	})
	r.configure("billing", "new")
	run("topology", "declare").is(t, 1, "nothing was done, since the audit record cannot be written")
	run("topology", "verify").is(t, 5, `queue "new"`, "missing")
}

// OP-01, OP-09: transports without a topology say so; bench on a broker leaves nothing there, nor in the inbox.
func TestBenchOfTransport(t *testing.T) {
	t.Parallel()
	r, s := newRabbit(t, "q"), newShop(t)
	settings := append(s.settings, r.settings[:3]...)
	a := command(t, settings, "bench", "--transport", "mq", "--messages", "30", "--paced", "2").is(t, 0, "transport mq (rabbitmq)", "paced")
	if strings.Contains(a.err, "error") {
		t.Error(a.err)
	}
	a = command(t, settings, "bench", "--transport", "mq", "--messages", "30", "--paced", "2", "--relays", "2", "--consumers", "2", "--inbox").is(t, 0,
		"2 consumers: concurrency 10, prefetch not set, inbox true", "paced: commit to handled", "32 messages staged, each one handled; 0 came again")
	if strings.Contains(a.err, "error") {
		t.Error(a.err)
	}
	s.run("list").is(t, 0, "no record matches")
	s.run("inbox", "purge", "--older", "1us", "--yes").is(t, 0, "0 marks")
	var queues []struct{ Name string }
	if err := r.mq.Do(t.Context(), "GET", "/api/queues/"+r.mq.VHost, nil, &queues); err != nil || len(queues) != 0 {
		t.Error(queues, err)
	}
	settings = append(s.settings, "transports.r.kind=redis", "transports.r.url=redis://"+strings.TrimPrefix(testenv.Redis(t), "redis://"))
	command(t, settings, "topology", "print").is(t, 2, "has no topology to manage")
	command(t, settings, "bench", "--transport", "r").is(t, 2, "name a --topic")
	command(t, settings, "bench", "--transport", "r", "--consumers", "1").is(t, 2, "cannot delete the queue of bench: leave out --consumers")
}
