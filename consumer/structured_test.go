package consumer_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
)

// TR-12: a CloudEvent in structured mode reaches its handler as any other message; one that cannot be read is parked.
func TestStructuredMode(t *testing.T) {
	t.Parallel()
	const attributes = `"specversion":"1.0","id":"7","source":"/foreign","type":"note.added"`
	for name, c := range map[string]struct {
		body   string
		id     string // beside the body
		want   waybill.Envelope
		reason waybill.Reason
		says   string
	}{
		"json": {body: `{` + attributes + `,"time":"2026-03-04T05:06:07Z","subject":"s","data":{"N":7}}`, want: waybill.Envelope{
			ID: "7", Source: "/foreign", Type: "note.added", Subject: "s", ContentType: "application/json", Body: []byte(`{"N":7}`),
		}},
		"base64": {body: `{` + attributes + `,"datacontenttype":"application/octet-stream","data_base64":"AAEC"}`, want: waybill.Envelope{
			ID: "7", Source: "/foreign", Type: "note.added", ContentType: "application/octet-stream", Body: []byte{0, 1, 2},
		}},
		"text": {body: `{` + attributes + `,"datacontenttype":"text/plain","data":"hello"}`, id: "7", want: waybill.Envelope{
			ID: "7", Source: "/foreign", Type: "note.added", ContentType: "text/plain", Body: []byte("hello"),
		}},
		"extensions": {body: `{` + attributes + `,"partitionkey":"k","topic":"other","tenant":"acme","expirytime":"never","number":12,"flag":true,"data":null}`, want: waybill.Envelope{
			ID: "7", Source: "/foreign", Type: "note.added", Key: "k", Tenant: "acme", ContentType: "application/json", Body: []byte("null"),
			Headers: map[string]string{"ce-number": "12", "ce-flag": "true", "ce-expirytime": "never"},
		}},
		"no data":         {body: `{` + attributes + `}`, want: waybill.Envelope{ID: "7", Source: "/foreign", Type: "note.added", ContentType: "application/json"}},
		"not JSON":        {body: `secret`, reason: waybill.ReasonUndecodable, says: "not a JSON object"},
		"no id":           {body: `{"specversion":"1.0","source":"/foreign","type":"t"}`, reason: waybill.ReasonUndecodable, says: "id, source or type is missing"},
		"other id":        {body: `{` + attributes + `}`, id: "8", reason: waybill.ReasonIDConflict, says: `the broker's id is "8"`},
		"both datas":      {body: `{` + attributes + `,"data":1,"data_base64":"AA=="}`, reason: waybill.ReasonUndecodable, says: "both"},
		"broken base64":   {body: `{` + attributes + `,"data_base64":"&"}`, reason: waybill.ReasonUndecodable, says: "not base64"},
		"odd attribute":   {body: `{` + attributes + `,"odd":{"a":1}}`, reason: waybill.ReasonUndecodable, says: `attribute "odd"`},
		"base64 a number": {body: `{` + attributes + `,"data_base64":1}`, reason: waybill.ReasonUndecodable, says: "not a text"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBus(t)
				var got []waybill.Envelope
				h := waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
					got = append(got, d.Envelope)
					return waybill.HandlerProcessed, nil
				}}
				c2 := newConsumer(t, b, consumer.Options{})
				if err := c2.Handle(waybill.Subscription{Queue: queue, Bindings: []string{"#"}}, h); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- c2.Run(ctx) }()
				synctest.Wait()
				b.send(t, waybill.Envelope{ID: c.id, Topic: "note.added", ContentType: "application/cloudevents+json; charset=UTF-8", Body: []byte(c.body)})
				synctest.Wait()
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if c.reason != waybill.ReasonNone {
					if len(got) > 0 || len(b.acks) != 1 || b.acks[0].Verdict != core.VerdictReject || b.acks[0].Reason != c.reason ||
						!strings.Contains(b.acks[0].Err, c.says) || strings.Contains(b.acks[0].Err, "secret") {
						t.Errorf("%d handled, settled as %+v; want parked as %s: %s", len(got), b.acks, c.reason, c.says)
					}
					return
				}
				if len(got) != 1 {
					t.Fatalf("%d handled: %+v", len(got), b.acks)
				}
				want := c.want
				want.Topic, want.Time = "note.added", got[0].Time
				if len(want.Body) == 0 {
					want.Body = got[0].Body[:0]
				}
				if d := cmp.Diff(want, got[0]); d != "" {
					t.Error(d)
				}
			})
		})
	}
}
