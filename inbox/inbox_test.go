package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type payment struct{ Amount int }

var paid = waybill.NewTopic("payment.done", waybill.JSON[payment]())

var errBoom = errors.New("boom")

func newStore(t *testing.T) *memory.Store {
	t.Helper()
	patience.BudgetOf(t)
	s, err := memory.New(memory.Options{Source: "/billing"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newInbox(t *testing.T, s *memory.Store, o inbox.Options) *inbox.Inbox[*memory.Tx] {
	t.Helper()
	box, err := inbox.New(s, "billing", o)
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func delivery(id string) *waybill.Delivery {
	e := paid.Message(payment{Amount: 5}, waybill.ID(id), waybill.Key("order-1")).Envelope
	e.Source = "/payments"
	return &waybill.Delivery{Envelope: e, Queue: "billing.payments", Attempt: 1}
}

// IN-01, IN-04: one effect; a failure leaves neither writes nor mark.
func TestHandlerOnce(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	runs, fail := 0, true
	h := inbox.Handler(newInbox(t, store, inbox.Options{}), paid, func(ctx context.Context, tx *memory.Tx, v payment) error {
		runs++
		tx.Put("paid", "yes")
		if d, ok := waybill.DeliveryFrom(ctx); !ok || d.Envelope.ID != "m-1" || v.Amount != 5 {
			t.Errorf("value %v, delivery %v", v, d)
		}
		if fail {
			return errBoom
		}
		return nil
	})
	if h.Name != "payment.done" {
		t.Errorf("name %q", h.Name)
	}
	if _, err := h.Handle(t.Context(), delivery("m-1")); !errors.Is(err, errBoom) {
		t.Errorf("error: %v", err)
	}
	if _, ok := store.Get("paid"); ok {
		t.Error("a failed handler left its writes")
	}
	fail = false
	for _, want := range []waybill.HandlerStatus{waybill.HandlerProcessed, waybill.HandlerDuplicate, waybill.HandlerDuplicate} {
		if st, err := h.Handle(t.Context(), delivery("m-1")); err != nil || st != want {
			t.Errorf("status %d, error %v; want status %d", st, err, want)
		}
	}
	if runs != 2 {
		t.Errorf("%d runs, want 2", runs)
	}
}

// IN-03: two at a time: one effect; if the first rolls back the second runs.
func TestHandlerConcurrentDuplicates(t *testing.T) {
	t.Parallel()
	for _, firstFails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore(t)
			runs := 0
			h := inbox.Handler(newInbox(t, store, inbox.Options{}), paid, func(context.Context, *memory.Tx, payment) error {
				runs++
				time.Sleep(time.Second)
				if firstFails && runs == 1 {
					return errBoom
				}
				return nil
			})
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() { _, _ = h.Handle(t.Context(), delivery("m-1")) })
			}
			wg.Wait()
			if want := map[bool]int{false: 1, true: 2}[firstFails]; runs != want {
				t.Errorf("first fails %v: %d runs, want %d", firstFails, runs, want)
			}
		})
	}
}

// IN-06: the identity of a message: never its ordering key.
func TestKey(t *testing.T) {
	t.Parallel()
	header := inbox.Options{ID: func(d *waybill.Delivery) string { return d.Envelope.Headers["event-id"] }}
	tests := []struct {
		name   string
		opts   inbox.Options
		change func(*waybill.Delivery)
		want   core.InboxKey
		text   string
	}{
		{name: "source and id", want: core.InboxKey{Consumer: "billing", Source: "/payments", ID: "m-1"}},
		{
			name: "no source", change: func(d *waybill.Delivery) { d.Envelope.Source = "" },
			want: core.InboxKey{Consumer: "billing", Source: "billing.payments", ID: "m-1"},
		},
		{name: "no id", change: func(d *waybill.Delivery) { d.Envelope.ID = "" }, text: "neither a CloudEvents id nor a broker message id"},
		{
			name: "extractor", opts: header, change: func(d *waybill.Delivery) { d.Envelope.Headers = map[string]string{"event-id": "e-9"} },
			want: core.InboxKey{Consumer: "billing", Source: "/payments", ID: "e-9"},
		},
		{name: "extractor finds none", opts: header, text: "Options.ID returned none"},
		{name: "id too long", change: func(d *waybill.Delivery) { d.Envelope.ID = strings.Repeat("x", 256) }, text: "256 bytes"},
		{name: "no source at all", change: func(d *waybill.Delivery) { d.Envelope.Source, d.Queue = "", "" }, text: "no source"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			box := newInbox(t, newStore(t), tt.opts)
			d := delivery("m-1")
			if tt.change != nil {
				tt.change(d)
			}
			ran := false
			h := inbox.Handler(box, paid, func(context.Context, *memory.Tx, payment) error { ran = true; return nil })
			_, err := h.Handle(t.Context(), d)
			key, keyErr := box.Key(d)
			if tt.text == "" {
				if err != nil || keyErr != nil || key.WithoutHash() != tt.want || !ran {
					t.Errorf("key %v, errors %v and %v, ran %v; want %v", key, keyErr, err, ran, tt.want)
				}
				return
			}
			if ran || waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonNoID ||
				!strings.Contains(err.Error(), tt.text) {
				t.Errorf("ran %v, error %v", ran, err)
			}
		})
	}
}

type badCodec struct{}

func (badCodec) ContentType() string            { return "" }
func (badCodec) Encode(payment) ([]byte, error) { return nil, nil }
func (badCodec) Decode([]byte) (payment, error) { panic("out of range") }

// neverDo is an inbox that must not be asked.
type neverDo struct{ t *testing.T }

func (n neverDo) Do(context.Context, core.InboxKey, func(context.Context, int) error) (core.InboxStatus, error) {
	n.t.Error("a transaction was begun")
	return core.InboxNone, nil
}

// CO-07: poison is found before a transaction is begun, even if the codec panics.
func TestUndecodable(t *testing.T) {
	t.Parallel()
	box, err := inbox.New(neverDo{t}, "billing", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fn := func(context.Context, int, payment) error { return nil }
	d := delivery("m-1")
	d.Envelope.Body = []byte(`{"Amount":"secret"}`)
	for _, topic := range []waybill.Topic[payment]{paid, waybill.NewTopic("payment.done", badCodec{})} {
		_, err := inbox.Handler(box, topic, fn).Handle(t.Context(), d)
		if waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonUndecodable ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("error: %v", err)
		}
	}
}

// again is an inbox whose database asks for a second run.
type again struct{ status core.InboxStatus }

func (a again) Do(ctx context.Context, _ core.InboxKey, fn func(context.Context, int) error) (core.InboxStatus, error) {
	if err := fn(ctx, 1); err != nil {
		return core.InboxNone, err
	}
	return a.status, fn(ctx, 2)
}

func TestHandlerRunsAgainWithAFreshValue(t *testing.T) {
	t.Parallel()
	topic := waybill.NewTopic("list", waybill.JSON[map[string]int]())
	for status, ok := range map[core.InboxStatus]bool{core.InboxNew: true, core.InboxNone: false} {
		box, err := inbox.New(again{status}, "billing", inbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		h := inbox.Handler(box, topic, func(_ context.Context, _ int, v map[string]int) error {
			if len(v) != 1 {
				t.Errorf("value %v", v)
			}
			v["more"] = 1
			return nil
		})
		d := &waybill.Delivery{Envelope: topic.Message(map[string]int{"a": 1}, waybill.ID("1")).Envelope, Queue: "q"}
		if _, err := h.Handle(t.Context(), d); (err == nil) != ok {
			t.Errorf("status %d: error %v", status, err)
		}
	}
}

// CO-16: a message that a handler stages in its transaction is caused by the handled one, and exists only if the
// handler commits.
func TestFollowUps(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	fail := true
	h := inbox.Handler(newInbox(t, store, inbox.Options{}), paid, func(ctx context.Context, tx *memory.Tx, _ payment) error {
		if _, err := store.Stage(ctx, tx, paid.Message(payment{}, waybill.ID("follow-up"))); err != nil {
			return err
		}
		if fail {
			return errBoom
		}
		return nil
	})
	d := delivery("m-1")
	d.Envelope.CorrelationID, d.Envelope.Tenant, d.Envelope.RunID, d.Envelope.Lineage = "c-1", "acme", "run-1", []string{"m-0"}
	if _, err := h.Handle(t.Context(), d); !errors.Is(err, errBoom) {
		t.Fatal(err)
	}
	if n := len(store.Records()); n != 0 {
		t.Fatalf("%d messages of a failed handler", n)
	}
	fail = false
	// A context that has the delivery already keeps what middleware set.
	ctx := waybill.WithTenant(waybill.WithDelivery(t.Context(), d), "umbrella")
	if _, err := h.Handle(ctx, d); err != nil {
		t.Fatal(err)
	}
	got := store.Records()
	if len(got) != 1 || got[0].Route != waybill.DefaultRoute || got[0].State != core.StatePending {
		t.Fatalf("staged: %v", got)
	}
	e := got[0].Envelope
	want := []any{"m-1", "c-1", "umbrella", "run-1", []string{"m-0", "m-1"}, "/billing"}
	if diff := cmp.Diff(want, []any{e.CausationID, e.CorrelationID, e.Tenant, e.RunID, e.Lineage, e.Source}); diff != "" {
		t.Error(diff)
	}
	if e.HLC == hlc.Timestamp(0) {
		t.Error("no stamp")
	}
}

func TestNewReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := inbox.New[int](nil, "", inbox.Options{})
	if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "store") || !strings.Contains(err.Error(), "consumerName") {
		t.Errorf("error: %v", err)
	}
	if _, err := inbox.New(neverDo{t}, strings.Repeat("x", 256), inbox.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("error: %v", err)
	}
	if h := inbox.Handler(nil, paid, func(context.Context, int, payment) error { return nil }); h.Handle != nil {
		t.Error("a handler without an inbox has a function")
	}
}

// With a declared source a message without one is the same in every queue.
func TestDeclaredSource(t *testing.T) {
	t.Parallel()
	var log sharedtest.Log
	box, err := inbox.New(newStore(t), "billing", inbox.Options{Source: "/legacy", Logger: log.Logger(slog.LevelInfo)})
	if err != nil {
		t.Fatal(err)
	}
	for _, queue := range []string{"old", "new"} {
		key, err := box.Key(&waybill.Delivery{Envelope: waybill.Envelope{ID: "1"}, Queue: queue})
		if err != nil || key.Source != "/legacy" {
			t.Errorf("%s: %+v, %v", queue, key, err)
		}
	}
	if key, err := box.Key(&waybill.Delivery{Envelope: waybill.Envelope{ID: "1", Source: "/own"}, Queue: "new"}); err != nil || key.Source != "/own" {
		t.Errorf("a source of its own: %+v, %v", key, err)
	}
	if log.String() != "" {
		t.Errorf("logged: %s", log.String())
	}
	err = inbox.Options{Source: strings.Repeat("x", 256)}.Validate()
	if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "Source: ") {
		t.Errorf("a long source: %v", err)
	}
}

// Messages without a source are named once for each queue: another producer's ids may be the same.
func TestMessagesWithoutSourceAreLogged(t *testing.T) {
	t.Parallel()
	var log sharedtest.Log
	box, err := inbox.New(newStore(t), "billing", inbox.Options{Logger: log.Logger(slog.LevelInfo)})
	if err != nil {
		t.Fatal(err)
	}
	for _, queue := range []string{"a", "b", "a", "b"} {
		if _, err := box.Key(&waybill.Delivery{Envelope: waybill.Envelope{ID: "1"}, Queue: queue}); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "event=inbox.no_source"); n != 2 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}
