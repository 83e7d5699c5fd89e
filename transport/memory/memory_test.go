package memory

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOptionsValidate(t *testing.T) {
	t.Parallel()
	_, err := New(Options{Queues: []Queue{{Bindings: []string{""}}, {Name: "a\x00"}}, MaxBodyBytes: -1})
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"Queues[0].Name", "Queues[0].Bindings[0]", "Queues[1].Name", "MaxBodyBytes"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestFullQueue(t *testing.T) {
	t.Parallel()
	tr := newTransport(t, Options{MaxMessages: 2, MaxBodyBytes: 4, Queues: []Queue{{"small", []string{"a"}}, {"all", []string{"#"}}}})
	ctx := t.Context()
	batch := []waybill.Envelope{{Topic: "a"}, {Topic: "a"}, {Topic: "a"}, {Topic: "b", Body: []byte("1234")}}
	res := tr.Publish(ctx, batch)
	var e *waybill.Error
	if res[0] != nil || res[1] != nil || !errors.As(res[2], &e) || e.Class != waybill.ClassOutage || !e.TopicOnly {
		t.Fatalf("got %v", res)
	}
	if waybill.ClassOf(res[3]) != waybill.ClassPermanent || waybill.ReasonOf(res[3]) != waybill.ReasonTooLarge {
		t.Errorf("too large: %v", res[3])
	}
	if got := tr.Depth("all"); got.Ready != 2 {
		t.Errorf("a message for a full queue reached another one: %+v", got)
	}
	r := subscribe(t, tr, core.Subscription{Queue: "small"})
	ds, err := r.Receive(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	all := subscribe(t, tr, core.Subscription{Queue: "all"})
	more, err := all.Receive(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	if res := tr.Publish(ctx, batch[:1]); res[0] == nil {
		t.Error("what is delivered but not settled does not count")
	}
	r.Settle(ctx, []core.Ack{core.AckDone(ds[0])})
	all.Settle(ctx, []core.Ack{core.AckDone(more[0])})
	if res := tr.Publish(ctx, batch[:1]); res[0] != nil {
		t.Errorf("the queue has room again: %v", res[0])
	}
}

func TestRetryIsHeldUntilDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(time.Hour, "the delay of a retry")
		tr := newTransport(t, Options{Queues: []Queue{{"q", []string{"#"}}}})
		r := subscribe(t, tr, core.Subscription{Queue: "q"})
		ctx := t.Context()
		tr.Publish(ctx, []waybill.Envelope{{Topic: "a", ID: "1"}, {Topic: "a", ID: "2"}})
		ds, err := r.Receive(ctx, 10)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		r.Settle(ctx, []core.Ack{core.AckRetry(ds[0], time.Hour, nil), core.AckRetry(ds[1], time.Minute, nil)})
		if got := tr.Depth("q"); got != (Depth{Delayed: 2}) {
			t.Errorf("depth %+v", got)
		}
		for _, want := range []struct {
			id string
			at time.Duration
		}{{"2", time.Minute}, {"1", time.Hour}} {
			ds, err := r.Receive(ctx, 10)
			if err != nil || len(ds) != 1 || ds[0].Envelope.ID != want.id || ds[0].Attempt != 2 {
				t.Fatalf("got %v, %v", ds, err)
			}
			if at := time.Since(start); at != want.at {
				t.Errorf("%s came after %s", want.id, at)
			}
			r.Settle(ctx, []core.Ack{core.AckDone(ds[0])})
		}
		if got := tr.Depth("q"); got != (Depth{}) {
			t.Errorf("depth %+v", got)
		}
	})
}

func TestParkedCopies(t *testing.T) {
	t.Parallel()
	tr := newTransport(t, Options{Queues: []Queue{{"q", []string{"#"}}, {"drop", []string{"#"}}}})
	ctx := t.Context()
	env := waybill.Envelope{Topic: "a", ID: "1", Body: []byte("x"), Headers: map[string]string{"k": "v"}}
	sent := env.Clone()
	tr.Publish(ctx, []waybill.Envelope{sent})
	sent.Body[0], sent.Headers["k"] = 'y', "w"
	for _, sub := range []core.Subscription{{Queue: "q"}, {Queue: "drop", DropFailed: true}} {
		r := subscribe(t, tr, sub)
		ds, err := r.Receive(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		ds[0].Envelope.Body[0] = 'z'
		r.Settle(ctx, []core.Ack{core.AckReject(ds[0], waybill.ReasonUndecodable, errors.New("bad"))})
	}
	for range 2 {
		got := tr.Parked("q")
		if len(got) != 1 {
			t.Fatalf("parked %d", len(got))
		}
		got[0].At = time.Time{}
		want := Parked{Envelope: env, Queue: "q", Attempt: 1, Reason: waybill.ReasonUndecodable, Err: "bad"}
		if d := cmp.Diff(want, got[0]); d != "" {
			t.Error(d)
		}
		got[0].Envelope.Body[0] = 'q'
	}
	if got := tr.Depth("drop"); got != (Depth{}) {
		t.Errorf("DropFailed: %+v", got)
	}
	if tr.Parked("none") != nil || tr.Depth("none") != (Depth{}) {
		t.Error("there is no such queue")
	}
}

// OR-09, RM-08: a parked message says how often it was tried, also when that was in place: there the consumer counts in
// the delivery.
func TestParkedAttemptsInPlace(t *testing.T) {
	t.Parallel()
	tr := newTransport(t, Options{})
	r := subscribe(t, tr, core.Subscription{Queue: "q", Bindings: []string{"#"}, InOrder: true})
	tr.Publish(t.Context(), []waybill.Envelope{{Topic: "a", ID: "1"}})
	ds, err := r.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	ds[0].Attempt = 3
	r.Settle(t.Context(), []core.Ack{core.AckReject(ds[0], waybill.ReasonAttempts, errors.New("no"))})
	if got := tr.Parked("q"); len(got) != 1 || got[0].Attempt != 3 {
		t.Errorf("parked after 3 attempts: %+v", got)
	}
}

func TestRedeliveries(t *testing.T) {
	t.Parallel()
	tr := newTransport(t, Options{Queues: []Queue{{"q", []string{"#"}}}})
	ctx := t.Context()
	tr.Publish(ctx, []waybill.Envelope{{Topic: "a", ID: "1"}, {Topic: "a", ID: "2"}, {Topic: "a", ID: "3"}})
	r := subscribe(t, tr, core.Subscription{Queue: "q"})
	ds, err := r.Receive(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	r.Settle(ctx, []core.Ack{core.AckRelease(ds[1])})
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	ds, err = subscribe(t, tr, core.Subscription{Queue: "q"}).Receive(ctx, 10)
	if err != nil {
		t.Fatal(err)
	}
	var got [][3]any
	for _, d := range ds {
		got = append(got, [3]any{d.Envelope.ID, d.Attempt, d.Redeliveries})
	}
	if d := cmp.Diff([][3]any{{"1", 1, 1}, {"2", 1, 0}, {"3", 1, 0}}, got); d != "" {
		t.Error(d)
	}
}

// CO-26
func TestReceiveIsBounded(t *testing.T) {
	t.Parallel()
	sharedtest.ReceiveIsBounded(t, newTransport(t, Options{}), 1)
}

func newTransport(t *testing.T, o Options) *Transport {
	t.Helper()
	tr, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close(context.Background()) })
	return tr
}

func subscribe(t *testing.T, tr *Transport, sub core.Subscription) core.Receiver {
	t.Helper()
	r, err := tr.Subscribe(t.Context(), sub)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
