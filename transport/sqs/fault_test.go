package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv/fakesqs"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

func batchOf(topic string, n int) []waybill.Envelope {
	batch := make([]waybill.Envelope, n)
	for i := range batch {
		batch[i] = waybill.Envelope{ID: fmt.Sprintf("%s/%d", topic, i), Topic: topic, Body: fmt.Appendf(nil, "body %d.", i)}
	}
	return batch
}

// TR-05: entries that fail in a batch fail alone, each by whose fault it is.
func TestEntriesFailAlone(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	bus := newBus(t, newClient(t, fake.URL()), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	fake.Fail(func(q fakesqs.Request) *fakesqs.Error {
		switch {
		case q.Action != "SendMessageBatch" || q.Entry < 0:
		case strings.Contains(q.Body, "body 3."):
			return &fakesqs.Error{Code: "InternalError", Server: true}
		case strings.Contains(q.Body, "body 14."):
			return &fakesqs.Error{Code: "Odd"}
		case strings.Contains(q.Body, "body 7."):
			return &fakesqs.Error{Code: "RequestThrottled"}
		}
		return nil
	})
	batch := batchOf("a", 25)
	for i, err := range bus.Publish(t.Context(), batch) {
		want := map[int]waybill.Class{3: waybill.ClassOutage, 14: waybill.ClassRejected, 7: waybill.ClassOutage}[i]
		if waybill.ClassOf(err) != want {
			t.Errorf("message %d: class %s, want %s: %v", i, waybill.ClassOf(err), want, err)
		}
	}
	if n := fake.Calls("SendMessageBatch"); n != 3 {
		t.Errorf("%d requests for 25 messages, want 3", n)
	}
	fake.Fail(nil)
	for range 22 {
		settle(t, r, core.AckDone(receive(t, r)))
	}
	if left := fake.Messages(opts.QueueName("q")); len(left) != 0 {
		t.Errorf("%d messages too much", len(left))
	}
}

// TR-05: throttled and broken calls are outages in both directions, and nothing is lost.
func TestThrottledCalls(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]fakesqs.Error{
		"throttled": {Code: "RequestThrottled"},
		"403":       {Code: "ThrottlingException", Status: http.StatusForbidden},
		"503":       {Code: "ServiceUnavailable", Status: http.StatusServiceUnavailable, Server: true},
		"token":     {Code: "ExpiredToken", Status: http.StatusForbidden},
		"500":       {Code: "Odd", Status: http.StatusInternalServerError, Server: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, opts := startFake(t), quick(false)
			bus := newBus(t, newClient(t, fake.URL()), opts)
			r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
			publish(t, bus, batchOf("a", 2)...)
			first, second := receive(t, r), receive(t, r)
			fake.Fail(func(fakesqs.Request) *fakesqs.Error { return &e })
			outage := func(what string, err error) {
				t.Helper()
				if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrLeaseLost) {
					t.Errorf("%s: class %s: %v", what, waybill.ClassOf(err), err)
				}
			}
			outage("publish", bus.Publish(t.Context(), batchOf("a", 1))[0])
			_, err := r.Receive(t.Context(), 1)
			outage("receive", err)
			acks := []core.Ack{core.AckDone(first), core.AckReject(second, waybill.ReasonRejected, nil)}
			for _, err := range r.Settle(t.Context(), acks) {
				outage("settle", err)
			}
			for _, err := range r.(core.DeliveryRenewer).RenewDeliveries(t.Context(), []*waybill.Delivery{first, second}, time.Second) {
				outage("renew", err)
			}
			_, err = bus.Subscribe(t.Context(), core.Subscription{Queue: "other"})
			outage("subscribe", err)
			fake.Fail(nil)
			settle(t, r, acks...) // it still holds them
			if n := len(fake.Messages(opts.QueueName("q"))); n != 0 {
				t.Errorf("%d messages are left", n)
			}
			if n := len(fake.Messages(opts.ParkedName("q"))); n != 1 {
				t.Errorf("%d messages are parked, want 1", n)
			}
		})
	}
}

// A failed delete after a copy was sent does not send it again.
func TestCopyIsSentOnce(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	bus := newBus(t, newClient(t, fake.URL()), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, batchOf("a", 1)...)
	ack := core.AckReject(receive(t, r), waybill.ReasonRejected, nil)
	fake.Fail(func(q fakesqs.Request) *fakesqs.Error {
		if q.Action == "DeleteMessageBatch" && q.Entry == 0 {
			return &fakesqs.Error{Code: "InternalError", Server: true}
		}
		return nil
	})
	if err := r.Settle(t.Context(), []core.Ack{ack}).FirstErr(); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("got %v", err)
	}
	fake.Fail(nil)
	settle(t, r, ack)
	if n := len(fake.Messages(opts.ParkedName("q"))); n != 1 {
		t.Errorf("%d copies are parked, want 1", n)
	}
}

// TR-05: a batch that is refused as a whole because of one message is sent one by one.
func TestRefusedBatch(t *testing.T) {
	t.Parallel()
	fake := startFake(t)
	bus := newBus(t, newClient(t, fake.URL()), quick(false))
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	refused := 0
	fake.Fail(func(q fakesqs.Request) *fakesqs.Error {
		if q.Action == "SendMessageBatch" && q.Entry < 0 && refused == 0 {
			refused++
			return &fakesqs.Error{Code: "InvalidMessageContents"}
		}
		if strings.Contains(q.Body, "body 1.") {
			return &fakesqs.Error{Code: "InvalidMessageContents"}
		}
		return nil
	})
	for i, err := range bus.Publish(t.Context(), batchOf("a", 3)) {
		if (i == 1) != (err != nil) || err != nil && waybill.ClassOf(err) != waybill.ClassRejected {
			t.Errorf("message %d: %v", i, err)
		}
	}
	settle(t, r, core.AckDone(receive(t, r)), core.AckDone(receive(t, r)))
}

// TR-05: both limits of a batch, 10 entries and 1 MiB, are kept; a message that does not fit alone is refused for good.
func TestLimitsOfABatch(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	bus := newBus(t, newClient(t, fake.URL()), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	batch := batchOf("a", 12)
	for i := range batch {
		batch[i].Body = make([]byte, 100<<10) // NULs: base64, 137 KiB, so that 7 fit
	}
	tooLarge := batchOf("a", 2)
	tooLarge[0].Body = make([]byte, sqstransport.MaxMessageBytes)
	tooLarge[1].Body = []byte(strings.Repeat("x", 600<<10))
	tooLarge[1].Headers = map[string]string{"x": strings.Repeat("\x01", 100<<10)} // six bytes each as JSON
	for i, err := range bus.Publish(t.Context(), append(batch, tooLarge...)) {
		if i < len(batch) {
			if err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		} else if waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonTooLarge {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if n := fake.Calls("SendMessageBatch"); n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
	for range batch {
		settle(t, r, core.AckDone(receive(t, r)))
	}
	fake.SetAttribute(opts.QueueName("q"), "MaximumMessageSize", "1024")
	small := append(batchOf("a", 1), tooLarge[1])
	small[1].Headers = nil
	res := bus.Publish(t.Context(), small)
	if res[0] != nil || waybill.ReasonOf(res[1]) != waybill.ReasonTooLarge {
		t.Errorf("with a queue that takes less: %v", res)
	}
}

// TR-05: if one of the queues of a message fails, the message fails, and so does no other.
func TestPartialFanOut(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	opts.Bindings = map[string][]string{"one": {"a", "b"}, "two": {"a"}, "missing": {"c"}}
	bus := newBus(t, newClient(t, fake.URL()), opts)
	for _, q := range []string{"one", "two"} {
		subscribe(t, bus, core.Subscription{Queue: q})
	}
	fake.Fail(func(q fakesqs.Request) *fakesqs.Error {
		if q.Action == "SendMessageBatch" && q.Queue == "two" {
			return &fakesqs.Error{Code: "AccessDenied", Status: http.StatusForbidden}
		}
		return nil
	})
	batch := []waybill.Envelope{{ID: "1", Topic: "a"}, {ID: "2", Topic: "b"}, {ID: "3", Topic: "c"}, {ID: "4", Topic: "d"}}
	res := bus.Publish(t.Context(), batch)
	if !errors.Is(res[0], waybill.ErrMisconfigured) || res[1] != nil || !errors.Is(res[2], waybill.ErrMisconfigured) || !errors.Is(res[3], waybill.ErrUnroutable) {
		t.Errorf("got %v", res)
	}
	fake.Fail(nil)
	publish(t, bus, batch[0])
	if one, two := len(fake.Messages("one")), len(fake.Messages("two")); one != 3 || two != 1 {
		t.Errorf("the queues have %d and %d messages, want 3 (one twice) and 1", one, two)
	}
}

// CO-21: SQS keeps a delivery for 12 hours at most, and then says that it is lost; an unknown receipt is lost, too.
func TestHoldEndsAfterTwelveHours(t *testing.T) {
	t.Parallel()
	for _, fifo := range []bool{false, true} {
		fake, opts := startFake(t), quick(fifo)
		opts.HoldFor = time.Hour
		bus := newBus(t, newClient(t, fake.URL()), opts)
		r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
		publish(t, bus, batchOf("a", 1)...)
		d := receive(t, r)
		renew := func(for_ time.Duration) error {
			return r.(core.DeliveryRenewer).RenewDeliveries(t.Context(), []*waybill.Delivery{d}, for_).FirstErr()
		}
		for range 21 { // 10.5 hours
			fake.Advance(30 * time.Minute)
			if err := renew(time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		fake.Advance(45 * time.Minute)
		if err := renew(time.Hour); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("fifo %t: renewed beyond 12 hours: %v", fifo, err)
		}
		fake.Advance(time.Hour)
		err := r.Settle(t.Context(), []core.Ack{core.AckDone(d)}).FirstErr()
		if fifo { // a standard queue does not look
			if !errors.Is(err, waybill.ErrLeaseLost) {
				t.Errorf("settled after 12 hours: %v", err)
			}
			other := subscribe(t, bus, core.Subscription{Queue: "q"})
			settle(t, other, core.AckDone(receive(t, other)))
		}
		_ = r.Close(context.Background())
	}
}

// CO-21: a delivery that a renewal found to be lost is another receiver's. So its retry, its release and its dead
// letter are no copies beside that one's message.
func TestLostDeliveryIsNotCopied(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	opts.HoldFor = time.Hour
	bus := newBus(t, newClient(t, fake.URL()), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, batchOf("a", 1)...)
	d := receive(t, r)
	fake.Advance(2 * time.Hour)
	other := subscribe(t, bus, core.Subscription{Queue: "q"})
	theirs := receive(t, other)
	fake.Fail(func(q fakesqs.Request) *fakesqs.Error {
		if q.Action == "ChangeMessageVisibility" || q.Action == "ChangeMessageVisibilityBatch" {
			return &fakesqs.Error{Code: "ReceiptHandleIsInvalid", Status: http.StatusBadRequest}
		}
		return nil
	})
	if err := r.(core.DeliveryRenewer).RenewDeliveries(t.Context(), []*waybill.Delivery{d}, time.Hour).FirstErr(); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Fatalf("the renewal: %v", err)
	}
	fake.Fail(nil)
	for _, a := range []core.Ack{core.AckRetry(d, 0, nil), core.AckRelease(d), core.AckReject(d, waybill.ReasonRejected, nil)} {
		if err := r.Settle(t.Context(), []core.Ack{a}).FirstErr(); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("%s: %v", a.Verdict, err)
		}
	}
	settle(t, other, core.AckDone(theirs))
	if q, dlq := len(fake.Messages("q")), len(fake.Messages("q-dlq")); q != 0 || dlq != 0 {
		t.Errorf("%d and %d copies are left", q, dlq)
	}
}

// TR-05: FIFO: within five minutes, the same id twice in a batch, sent again, retried, and parked twice: all of it
// arrives.
func TestFIFOSwallowsNothing(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(true)
	bus := newBus(t, newClient(t, fake.URL()), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	m := waybill.Envelope{ID: "1", Topic: "a", Key: "k"}
	publish(t, bus, m, m)
	publish(t, bus, m)
	for range 3 {
		d := receive(t, r)
		settle(t, r, core.AckRetry(d, 0, nil))
		settle(t, r, core.AckReject(receive(t, r), waybill.ReasonRejected, nil))
	}
	seen := map[string]bool{}
	for _, p := range fake.Messages(opts.ParkedName("q")) {
		seen[p.Dedup] = true
		if p.Group != "k-k" {
			t.Errorf("parked in group %q", p.Group)
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d different messages are parked, want 3", len(seen))
	}
}
