package sharedtest

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/hlc"
)

// Envelope returns a message with all attributes, for tests of transports that send it.
func Envelope() waybill.Envelope {
	at := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
	return waybill.Envelope{
		ID: "0190d3f2-7b1c-7000-8000-000000000001", Topic: "orders.placed", Type: "com.example.order.placed", Source: "/orders",
		Subject: "order/42", Time: at, ContentType: "application/json", Key: "order-42", Tenant: "acme",
		CorrelationID: "conversation-7", CausationID: "0190d3f2-7b1c-7000-8000-000000000000", RunID: "run-9",
		Lineage: []string{"root", "0190d3f2-7b1c-7000-8000-000000000000"}, HLC: hlc.Timestamp(at.UnixMilli()<<16 | 7),
		Expires: at.Add(time.Minute), Priority: 5, TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		TraceState: "vendor=1", Headers: map[string]string{"region": "eu"}, Body: []byte(`{"order":42}`),
	}
}
