package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// With Subscription.Sources a source sends the topics that it may send, and nothing else reaches a handler: not a topic
// of another source, not a source that is not named, not a message without one. It is parked.
func TestSources(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		b := declared(t)
		var handled seen[string]
		h := waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			handled.add(d.Envelope.ID)
			return waybill.HandlerProcessed, nil
		}}
		sub := waybill.Subscription{Sources: map[string][]string{"/payments": {"payments.*"}, "/mails": {"mails.#", "news"}}}
		stop := start(t, b, consumer.Options{Concurrency: 1}, sub, h)
		sub.Sources["/evil"] = []string{"#"} // too late
		for id, e := range map[string]waybill.Envelope{
			"1 payment":                 {Source: "/payments", Topic: "payments.made"},
			"2 mail":                    {Source: "/mails", Topic: "mails.opened.twice"},
			"3 news":                    {Source: "/mails", Topic: "news"},
			"forged by the mails":       {Source: "/payments", Topic: "mails.opened"},
			"forged by the payments":    {Source: "/mails", Topic: "payments.made"},
			"beyond the wildcard":       {Source: "/payments", Topic: "payments.made.twice"},
			"of nobody":                 {Topic: "payments.made"},
			"of a source in other case": {Source: "/Payments", Topic: "payments.made"},
			"of a later source":         {Source: "/evil", Topic: "payments.made"},
		} {
			e.ID = id
			b.send(t, e)
		}
		queued(t, b, memtransport.Depth{Parked: 6})
		stop()
		wantParked(t, b, waybill.ReasonForbidden, 6)
		got := handled.all()
		slices.Sort(got)
		if diff := cmp.Diff([]string{"1 payment", "2 mail", "3 news"}, got); diff != "" {
			t.Error(diff)
		}
		for _, p := range b.Parked(queue) {
			if !strings.Contains(p.Err, "by Subscription.Sources") {
				t.Errorf("%s: %s", p.Envelope.ID, p.Err)
			}
		}
	})
}

func TestBadSources(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	err := newConsumer(t, b, consumer.Options{}).Handle(waybill.Subscription{Queue: queue, Sources: map[string][]string{
		"/a": nil, "/b": {"ok", ""}, "/c": {strings.Repeat("x", 300)},
	}}, handle(func(context.Context, *waybill.Delivery) error { return nil }))
	for _, want := range []string{`Sources["/a"]: is empty`, `Sources["/b"][1]: is empty`, `Sources["/c"][0]: has 300 bytes`} {
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
}
