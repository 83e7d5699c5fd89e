package inbox_test

import (
	"bytes"
	"context"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transform"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/waybilltest/faults"
)

// IN-01, IN-10: a message with the id and source of a handled one, but with another topic, type, key, tenant or body,
// is a conflict: it is refused for good, and its handler does not run. A change on the way of one message makes none.
func TestOtherContentIsAConflict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change   func(e *waybill.Envelope)
		opts     inbox.Options
		conflict bool
	}{
		"topic":           {change: func(e *waybill.Envelope) { e.Topic = "mails.opened" }, conflict: true},
		"type":            {change: func(e *waybill.Envelope) { e.Type = "refund" }, conflict: true},
		"key":             {change: func(e *waybill.Envelope) { e.Key = "k2" }, conflict: true},
		"tenant":          {change: func(e *waybill.Envelope) { e.Tenant = "evil" }, conflict: true},
		"border":          {change: func(e *waybill.Envelope) { e.Key, e.Tenant = "k1a", "cme" }, conflict: true},
		"body":            {change: func(e *waybill.Envelope) { e.Body = []byte(`{"Amount":6}`) }, conflict: true},
		"topic, any body": {change: func(e *waybill.Envelope) { e.Topic = "mails.opened" }, opts: inbox.Options{AnyBody: true}, conflict: true},
		"body, any body":  {change: func(e *waybill.Envelope) { e.Body = []byte(`{"Amount":6}`) }, opts: inbox.Options{AnyBody: true}},
		"nothing":         {change: func(*waybill.Envelope) {}},
		"all that may change on the way": {change: func(e *waybill.Envelope) {
			e.Headers = map[string]string{"x-retried": "yes"}
			e.TraceParent, e.Priority, e.Expires = "00-1-1-00", 9, time.Now().Add(time.Hour)
			e.ContentType = "application/json; charset=utf-8"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := newInbox(t, newStore(t), c.opts)
			ran := 0
			single := inbox.Handler(box, paid, func(context.Context, *memory.Tx, payment) error { ran++; return nil })
			batch := inbox.BatchHandler(box, paid, func(context.Context, *memory.Tx, []inbox.Item[payment]) error { ran++; return nil }, inbox.BatchOptions{})
			first := delivery("m-1")
			first.Envelope.Key, first.Envelope.Tenant = "k1", "acme"
			if _, err := single.Handle(t.Context(), first); err != nil || ran != 1 {
				t.Fatal(err, ran)
			}
			second := &waybill.Delivery{Envelope: first.Envelope.Clone(), Queue: first.Queue, Attempt: 2}
			c.change(&second.Envelope)
			st, err := single.Handle(t.Context(), second)
			statuses, errBatch := batch.Batch(t.Context(), []*waybill.Delivery{second})
			if ran != 1 || errBatch != nil {
				t.Fatal("the handler ran again, or the batch failed:", errBatch)
			}
			if !c.conflict {
				if err != nil || st != waybill.HandlerDuplicate || statuses[0] != waybill.HandlerDuplicate {
					t.Errorf("status %v, error %v, in a batch %v; want a duplicate", st, err, statuses)
				}
				return
			}
			if waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonIDConflict || statuses[0] != waybill.HandlerLeftOut {
				t.Errorf("error %v with reason %q, in a batch %v; want a conflict", err, waybill.ReasonOf(err), statuses)
			}
		})
	}
}

// IN-01: the content of a message is compared as its handler gets it: a message that was encrypted anew, or not at all,
// is a duplicate.
func TestTransformedContentIsTheSame(t *testing.T) {
	t.Parallel()
	box := newInbox(t, newStore(t), inbox.Options{})
	ran := 0
	keys := transform.StaticKeys(map[string][]byte{"k": bytes.Repeat([]byte("k"), 32)})
	plain := transform.Encrypt{KeyID: "k", Keys: keys, AllowPlain: true}
	h, err := transform.Handler(inbox.Handler(box, paid, func(context.Context, *memory.Tx, payment) error { ran++; return nil }), plain)
	if err != nil {
		t.Fatal(err)
	}
	d := delivery("m-1")
	for i := range 3 {
		sent := &waybill.Delivery{Envelope: d.Envelope.Clone(), Queue: d.Queue, Attempt: 1}
		if i < 2 {
			body, _, err := plain.Do(t.Context(), &sent.Envelope)
			if err != nil {
				t.Fatal(err)
			}
			sent.Envelope.Body, sent.Envelope.Headers = body, maps.Clone(d.Envelope.Headers)
			if sent.Envelope.Headers == nil {
				sent.Envelope.Headers = map[string]string{}
			}
			sent.Envelope.Headers[transform.Header] = plain.Coding()
		}
		if st, err := h.Handle(t.Context(), sent); err != nil || (st == waybill.HandlerDuplicate) != (i > 0) {
			t.Errorf("delivery %d: status %v, error %v", i, st, err)
		}
	}
	if ran != 1 {
		t.Errorf("it ran %d times", ran)
	}
}

// IN-01, IN-10: a sender of one topic cannot make a message of another topic vanish as a duplicate: that one is parked
// with its reason, for an operator to see.
func TestAMessageCannotBeSuppressed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		box := newInbox(t, newStore(t), inbox.Options{})
		bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "billing", Bindings: []string{"#"}}}})
		if err != nil {
			t.Fatal(err)
		}
		ran := map[string]int{}
		handler := func(name string) waybill.Handler {
			topic := waybill.NewTopic(name, waybill.JSON[payment]())
			return inbox.Handler(box, topic, func(context.Context, *memory.Tx, payment) error { ran[name]++; return nil })
		}
		c, err := consumer.New(faults.Subscriber(bus, counted(t)), consumer.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Handle(waybill.Subscription{Queue: "billing", Concurrency: 1}, handler("payments.made"), handler("mails.opened")); err != nil {
			t.Fatal(err)
		}
		message := waybill.Envelope{ID: "pay-77", Source: "/payments", ContentType: "application/json", Body: []byte(`{"Amount":5}`)}
		for _, name := range []string{"mails.opened", "payments.made"} {
			message.Topic, message.Type = name, name
			if err := bus.Publish(t.Context(), []waybill.Envelope{message}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		counts, err := c.RunOnce(t.Context())
		parked := bus.Parked("billing")
		if err != nil || counts.Duplicates != 0 || counts.Parked != 1 || len(parked) != 1 ||
			parked[0].Reason != waybill.ReasonIDConflict || parked[0].Envelope.Topic != "payments.made" || ran["mails.opened"] != 1 || ran["payments.made"] != 0 {
			t.Errorf("%v, %+v, parked %+v, ran %v; want the payment to be parked", err, counts, parked, ran)
		}
	})
}

// IN-01: a message that an operator has repaired is a duplicate if it was handled before the repair, and has its effect
// if it was not. The header of a repair cannot suppress another message.
func TestARepairedMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		box := newInbox(t, newStore(t), inbox.Options{})
		bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "billing", Bindings: []string{"#"}}}})
		if err != nil {
			t.Fatal(err)
		}
		var amounts []int
		handler := inbox.Handler(box, paid, func(_ context.Context, _ *memory.Tx, p payment) error {
			amounts = append(amounts, p.Amount)
			return nil
		})
		repaired := func(id, body string) *waybill.Delivery {
			t.Helper()
			e := delivery(id).Envelope
			r, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "billing"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close(t.Context()) }()
			receive := func() *waybill.Delivery {
				t.Helper()
				ds, err := r.Receive(t.Context(), 1)
				if err != nil || len(ds) != 1 {
					t.Fatal(ds, err)
				}
				return ds[0]
			}
			if err := bus.Publish(t.Context(), []waybill.Envelope{e}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			d := receive()
			for range 2 { // it is repaired twice
				if err := r.Settle(t.Context(), []core.Ack{core.AckReject(d, waybill.ReasonRejected, errBoom)}).FirstErr(); err != nil {
					t.Fatal(err)
				}
				_, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "billing", All: true, Edit: func(admin.Parked) ([]byte, error) { return []byte(body), nil }})
				if err != nil {
					t.Fatal(err)
				}
				d = receive()
			}
			if err := r.Settle(t.Context(), []core.Ack{core.AckDone(d)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			return d
		}
		handle := func(d *waybill.Delivery) string {
			st, err := handler.Handle(t.Context(), d)
			switch {
			case waybill.ReasonOf(err) == waybill.ReasonIDConflict:
				return "conflict"
			case err != nil:
				return err.Error()
			case st == waybill.HandlerDuplicate:
				return "duplicate"
			}
			return "processed"
		}
		expect := func(what, want string, d *waybill.Delivery) {
			t.Helper()
			if got := handle(d); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		expect("a message", "processed", delivery("1"))
		expect("its repair, too late", "duplicate", repaired("1", `{"Amount":7}`))
		expect("another message with its id", "conflict", &waybill.Delivery{Queue: "q", Envelope: waybill.Envelope{
			ID: "1", Source: delivery("1").Envelope.Source, Topic: delivery("1").Envelope.Topic, ContentType: "application/json",
			Body: []byte(`{"Amount":8}`), Headers: map[string]string{"repaired-from": strings.Repeat("ab", 16)},
		}})
		expect("a repaired message", "processed", repaired("2", `{"Amount":9}`))
		expect("it again", "duplicate", repaired("2", `{"Amount":9}`))
		expect("what it was before", "conflict", delivery("2"))
		if len(amounts) != 2 || amounts[1] != 9 {
			t.Errorf("effects: %v", amounts)
		}
	})
}

// counted counts the calls of an engine for the budget of the test.
func counted(t *testing.T) faults.Script {
	t.Helper()
	count := patience.BudgetOf(t).Counter()
	return func(c faults.Call) faults.Fault {
		count(c.Op)
		return faults.Fault{}
	}
}
