package sqs_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// CO-02: the broker's own message has what an envelope has no field for, and settles nothing.
func TestNative(t *testing.T) {
	t.Parallel()
	client := newClient(t, startFake(t).URL())
	bus := newBus(t, client, quick(false))
	r := subscribe(t, bus, core.Subscription{Queue: "q"})
	count, kind := "7", "Number.int"
	if err := sendRaw(t.Context(), client, quick(false), "q", map[string]types.MessageAttributeValue{"n": {DataType: &kind, StringValue: &count}}); err != nil {
		t.Fatal(err)
	}
	d := receive(t, r)
	m, ok := waybill.Native[types.Message](d)
	if !ok || *m.MessageAttributes["n"].DataType != kind || *m.Body != "foreign" || m.Attributes["ApproximateReceiveCount"] != "1" {
		t.Errorf("%t, %+v", ok, m)
	}
	if m.ReceiptHandle != nil {
		t.Error("a handler can settle it")
	}
	settle(t, r, core.AckDone(d))
}
