package waybilltest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/waybilltest"
)

// tb collects what would fail a test.
type tb struct {
	*testing.T
	failures []string
}

func (t *tb) Errorf(format string, a ...any) {
	t.failures = append(t.failures, fmt.Sprintf(format, a...))
}

func (t *tb) Fatalf(format string, a ...any) {
	t.Errorf(format, a...)
	panic(t)
}

// fails returns how f fails its test.
func fails(t *testing.T, f func(waybilltest.TB)) (failures []string) {
	t.Helper()
	inner := &tb{T: t}
	defer func() {
		if p := recover(); p != nil && p != any(inner) {
			panic(p)
		}
		failures = inner.failures
	}()
	f(inner)
	return nil
}

type fakeTx struct{ n int }

// TestRecorder: a staged message is completed as in a store, with its routes, lane, delay and transaction. The
// producer's signature takes the driver's transaction.
//
// TE-04 ST-21
func TestRecorder(t *testing.T) {
	t.Parallel()
	r := waybilltest.NewRecorder[*fakeTx](t)
	var _ waybill.Stager[*fakeTx] = r
	tx := &fakeTx{1}
	ctx := waybill.WithTenant(t.Context(), "acme")
	m := OrderPlaced.Message(Order{"o-1", 5}, waybill.Key("o-1"), waybill.Routes("a", "b"), waybill.Delay(time.Minute))
	staged, err := r.Stage(ctx, tx, m, ReceiptReady.Message(Order{"o-1", 5}))
	if err != nil || len(staged) != 3 {
		t.Fatalf("%+v, %v", staged, err)
	}
	got := r.Recorded("orders.placed")
	if len(got) != 2 || len(r.Recorded()) != 3 || len(r.Recorded("other")) != 0 {
		t.Fatalf("%+v", got)
	}
	for i, rec := range got {
		e := rec.Envelope
		if rec.Route != []string{"a", "b"}[i] || staged[i] != (waybill.Staged{ID: e.ID, Route: rec.Route}) || rec.Delay != time.Minute || rec.Tx != tx ||
			e.Key != "o-1" || e.Tenant != "acme" || e.Type != "orders.placed" || e.Source != "/test" || e.Time.IsZero() {
			t.Errorf("%+v", rec)
		}
	}
	if diff := cmp.Diff([]Order{{"o-1", 5}, {"o-1", 5}}, waybilltest.Values(r, OrderPlaced)); diff != "" {
		t.Error(diff)
	}
	if got := waybilltest.Require(r, ReceiptReady); got != (Order{"o-1", 5}) {
		t.Errorf("%+v", got)
	}
	got[0].Envelope.Body[0] = 'x' // a copy
	_ = waybilltest.Values(r, OrderPlaced)
}

// TestRecorderRefuses: bad input is refused as a whole, as by a store.
func TestRecorderRefuses(t *testing.T) {
	t.Parallel()
	r := waybilltest.NewRecorder[*fakeTx](t)
	_, err := r.Stage(t.Context(), nil, OrderPlaced.Message(Order{}), OrderPlaced.Message(Order{}, waybill.Delay(-1)))
	if !errors.Is(err, waybill.ErrInvalid) || len(r.Recorded()) != 0 {
		t.Errorf("%v, %+v", err, r.Recorded())
	}
	other := waybill.NewTopic("orders.placed", waybill.JSON[int]())
	if _, err := r.Stage(t.Context(), nil, OrderPlaced.Message(Order{}), other.Message(1)); err == nil || !strings.Contains(err.Error(), "declared twice") {
		t.Error(err)
	}
	if staged, err := r.Stage(t.Context(), nil); staged != nil || err != nil {
		t.Error(staged, err)
	}
}

// TestRecorderDuplicates: ids and dedupe keys are answered as by a store.
//
// ST-08
func TestRecorderDuplicates(t *testing.T) {
	t.Parallel()
	r := waybilltest.NewRecorder[*fakeTx](t)
	stage := func(opts ...waybill.MessageOption) waybill.Staged {
		t.Helper()
		staged, err := r.Stage(t.Context(), nil, Reminder.Message(Order{ID: "o-" + strconv.Itoa(len(r.Recorded()))}, opts...))
		if err != nil || len(staged) != 1 {
			t.Fatal(staged, err)
		}
		return staged[0]
	}
	replace := func(m *waybill.Message) { m.Replace = true }
	for _, c := range []struct {
		name      string
		got, want waybill.Staged
	}{
		{"new", stage(waybill.ID("1"), waybill.DedupeKey("k")), waybill.Staged{ID: "1", Route: "default"}},
		{"same id", stage(waybill.ID("1")), waybill.Staged{ID: "1", Route: "default", Duplicate: true}},
		{"same id, other route", stage(waybill.ID("1"), waybill.Routes("x")), waybill.Staged{ID: "1", Route: "x"}},
		{"same key", stage(waybill.ID("2"), waybill.DedupeKey("k")), waybill.Staged{ID: "1", Route: "default", Duplicate: true}},
		{"replaces", stage(waybill.ID("3"), waybill.DedupeKey("k"), replace), waybill.Staged{ID: "3", Route: "default", Replaced: waybill.CancelDone}},
		{"replaces nothing", stage(waybill.ID("4"), waybill.DedupeKey("other"), replace), waybill.Staged{ID: "4", Route: "default"}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, c.got, c.want)
		}
	}
	var ids []string
	for _, rec := range r.Recorded() {
		ids = append(ids, rec.Envelope.ID)
	}
	if !slices.Equal(ids, []string{"1", "3", "4"}) {
		t.Errorf("recorded %q", ids)
	}
}

// TestRecorderConcurrently: many producers may share a recorder.
func TestRecorderConcurrently(t *testing.T) {
	t.Parallel()
	r := waybilltest.NewRecorder[*fakeTx](t)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for range 50 {
				if _, err := r.Stage(t.Context(), &fakeTx{n}, OrderPlaced.Message(Order{"o", n})); err != nil {
					t.Error(err)
				}
				_ = r.Recorded()
			}
		})
	}
	wg.Wait()
	if n := len(waybilltest.Values(r, OrderPlaced)); n != 400 {
		t.Errorf("%d recorded", n)
	}
}

// TestRequire: there must be exactly one message.
func TestRequire(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stage []waybill.Message
		want  string
	}{
		"none": {[]waybill.Message{Reminder.Message(Order{}), Reminder.Message(Order{})}, `no message on topic "orders.placed"; there are messages on ["orders.reminder"]`},
		"two":  {[]waybill.Message{OrderPlaced.Message(Order{"a", 1}), OrderPlaced.Message(Order{"b", 2})}, `2 messages on topic "orders.placed", want one: [{ID:a Cents:1} {ID:b Cents:2}]`},
		"not its type": {
			[]waybill.Message{waybill.RawMessage("orders.placed", "application/json", []byte("1"))}, "does not fit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := fails(t, func(tb waybilltest.TB) {
				r := waybilltest.NewRecorder[*fakeTx](tb)
				if _, err := r.Stage(t.Context(), nil, c.stage...); err != nil {
					t.Fatal(err)
				}
				waybilltest.Require(r, OrderPlaced)
			})
			if len(got) != 1 || !strings.Contains(got[0], c.want) {
				t.Errorf("failed with %q, want %q", got, c.want)
			}
		})
	}
}

// TestUnhandled: a message that no handler is for fails the test, unless that is allowed.
//
// TE-04
func TestUnhandled(t *testing.T) {
	t.Parallel()
	handle := waybill.HandlerFor(OrderPlaced, func(context.Context, Order) error { return nil })
	got := fails(t, func(tb waybilltest.TB) {
		env := waybilltest.New(tb, waybilltest.Options{}, handle)
		env.Stage(OrderPlaced.Message(Order{}), ReceiptReady.Message(Order{}))
	})
	if len(got) != 1 || !strings.Contains(got[0], `no handler is for type "receipts.ready" or topic "receipts.ready"`) || !strings.Contains(got[0], "AllowUnhandled") {
		t.Errorf("failed with %q", got)
	}
	env := waybilltest.New(t, waybilltest.Options{AllowUnhandled: true}, handle)
	env.Stage(OrderPlaced.Message(Order{}), ReceiptReady.Message(Order{"o-1", 1}))
	if got := waybilltest.Require(env, ReceiptReady); got.ID != "o-1" {
		t.Errorf("%+v", got)
	}
}

// TestPrintsWords: a failing test shows words, and no numbers.
func TestPrintsWords(t *testing.T) {
	t.Parallel()
	r := waybilltest.Result{Status: waybill.HandlerDuplicate, Verdict: core.VerdictRetry}
	for name, text := range map[string]string{
		"%+v": fmt.Sprintf("%+v", r), "%v": fmt.Sprintf("%v", r), "Sent": fmt.Sprintf("%+v", waybilltest.Sent{Result: r}), "diff": cmp.Diff(r, waybilltest.Result{}),
	} {
		if !strings.Contains(text, "duplicate") || !strings.Contains(text, "retry") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
