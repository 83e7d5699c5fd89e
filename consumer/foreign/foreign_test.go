package foreign_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer/foreign"
	"github.com/waybill-go/waybill/hlc"
)

func TestReaders(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 26, 12, 54, 29, 486368000, time.UTC)
	ids := func(text string) map[string]string { return map[string]string{"x-outbox-tracking-ids": text} }
	forze := map[string]string{
		"forze_event_id": "e-1", "forze_key": "o-1", "forze_tenant_id": "acme", "forze_correlation_id": "c-1", "forze_causation_id": "m-0",
		"forze_execution_id": "run-9", "forze_occurred_at": "2026-11-26T12:54:29.486368+00:00", "forze_hlc": "001795696026933.00017",
	}
	with := func(name, value string) map[string]string {
		return map[string]string{"forze_event_id": "e-1", name: value}
	}
	native := waybill.Envelope{ID: "m-1", Source: "/payments", Topic: "a.b", Type: "a.b", Body: []byte("x")}
	for name, tc := range map[string]struct {
		read  foreign.Reader
		e     waybill.Envelope
		want  waybill.Envelope
		wrong bool
	}{
		"tracking ids": {
			foreign.TrackingIDs("/orders"),
			waybill.Envelope{ID: "random", Topic: "a.b", Headers: ids(`["root", "parent", "own"]`)},
			waybill.Envelope{ID: "own", Source: "/orders", Topic: "a.b", Type: "a.b", Lineage: []string{"root", "parent"}},
			false,
		},
		"of a named source": {
			foreign.TrackingIDs("/orders"),
			waybill.Envelope{Source: "/old", Topic: "a.b", Headers: ids(`["own"]`)},
			waybill.Envelope{ID: "own", Source: "/old", Topic: "a.b", Type: "a.b", Lineage: []string{}},
			false,
		},
		"retried by the old worker": {
			foreign.TrackingIDs("/orders"),
			waybill.Envelope{Topic: "billing", Headers: map[string]string{"x-outbox-tracking-ids": `["own"]`, "x-original-routing-key": "a.b"}},
			waybill.Envelope{ID: "own", Source: "/orders", Topic: "a.b", Type: "a.b", Lineage: []string{}},
			false,
		},
		"tracking ids that are none": {foreign.TrackingIDs("/orders"), waybill.Envelope{Headers: ids(`own`)}, waybill.Envelope{}, true},
		"no tracking id":             {foreign.TrackingIDs("/orders"), waybill.Envelope{Headers: ids(`[]`)}, waybill.Envelope{}, true},
		"forze": {
			foreign.Forze("/orders"),
			waybill.Envelope{ID: "random", Topic: "shop:orders", Type: "order.placed", Headers: forze},
			waybill.Envelope{
				ID: "e-1", Source: "/orders", Topic: "order.placed", Type: "order.placed", Key: "o-1", Tenant: "acme", CorrelationID: "c-1",
				CausationID: "m-0", RunID: "run-9", Time: at, HLC: hlc.Timestamp(1795696026933<<16 | 17),
			},
			false,
		},
		"forze without a key": {
			foreign.Forze("/orders"),
			waybill.Envelope{Topic: "shop:orders", Type: "order.placed", Headers: with("forze_key", "e-1")},
			waybill.Envelope{ID: "e-1", Source: "/orders", Topic: "order.placed", Type: "order.placed"},
			false,
		},
		"a time that is none":  {foreign.Forze("/orders"), waybill.Envelope{Headers: with("forze_occurred_at", "today")}, waybill.Envelope{}, true},
		"a stamp that is none": {foreign.Forze("/orders"), waybill.Envelope{Headers: with("forze_hlc", "12")}, waybill.Envelope{}, true},
		"a counter beyond HLC": {foreign.Forze("/orders"), waybill.Envelope{Headers: with("forze_hlc", "12.65536")}, waybill.Envelope{}, true},
		"the id in a header":   {foreign.IDFromHeader("x-id", "/orders"), waybill.Envelope{Topic: "t", Headers: map[string]string{"x-id": "7"}}, waybill.Envelope{ID: "7", Source: "/orders", Topic: "t", Type: "t"}, false},
		"a body without an id": {foreign.IDFromBody("/orders"), waybill.Envelope{Topic: "t", Body: []byte("x")}, waybill.Envelope{ID: "f5bc8d2645e455308467d6f0aa8324e7", Source: "/orders", Topic: "t", Type: "t", Body: []byte("x")}, false},
		"watermill": {
			foreign.Watermill("/orders"),
			waybill.Envelope{Topic: "t", Headers: map[string]string{"_watermill_message_uuid": "u-1", "correlation_id": "c-1"}},
			waybill.Envelope{ID: "u-1", Source: "/orders", Topic: "t", Type: "t", CorrelationID: "c-1"},
			false,
		},
		"a message id":           {foreign.MessageID("/orders"), waybill.Envelope{ID: "m-1", Topic: "t"}, waybill.Envelope{ID: "m-1", Source: "/orders", Topic: "t", Type: "t"}, false},
		"no message id":          {foreign.MessageID("/orders"), waybill.Envelope{Topic: "t"}, waybill.Envelope{Topic: "t"}, false},
		"debezium":               {foreign.IDFromHeader("id", "/orders"), waybill.Envelope{Topic: "outbox.event.order", Key: "1", Headers: map[string]string{"id": "e-1"}}, waybill.Envelope{ID: "e-1", Source: "/orders", Topic: "outbox.event.order", Type: "outbox.event.order", Key: "1"}, false},
		"native, watermill":      {foreign.Watermill("/orders"), native, native, false},
		"native, message id":     {foreign.MessageID("/orders"), native, native, false},
		"native, tracking ids":   {foreign.TrackingIDs("/orders"), native, native, false},
		"native, forze":          {foreign.Forze("/orders"), native, native, false},
		"native, header":         {foreign.IDFromHeader("x-id", "/orders"), native, native, false},
		"native, hash of a body": {foreign.IDFromBody("/orders"), native, native, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := tc.e
			err := tc.read(&e)
			if (err != nil) != tc.wrong {
				t.Fatal(err)
			}
			if tc.wrong {
				return
			}
			again := e.Clone() // as a copy of a transport that keeps the envelope
			if err := tc.read(&again); err != nil {
				t.Error(err)
			}
			e.Headers, again.Headers = nil, nil
			if diff := cmp.Diff(tc.want, e); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(e, again); diff != "" {
				t.Errorf("a second reading changed it:\n%s", diff)
			}
		})
	}
}
