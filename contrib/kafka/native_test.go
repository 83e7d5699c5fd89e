package kafka_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
)

// CO-02: the broker's own record has what an envelope has no field for.
func TestNative(t *testing.T) {
	t.Parallel()
	f := startFake(t)
	bus := dial(t, f.address(), options())
	r := subscribe(t, bus, "q", "a")
	if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: "one", Topic: "a", Key: "k", Body: []byte("body")}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	d := receive(t, r, 1)[0]
	rec, ok := waybill.Native[*kgo.Record](d)
	if !ok || string(rec.Value) != "body" || string(rec.Key) != "k" || rec.Topic == "" || rec.Timestamp.IsZero() {
		t.Errorf("%t, %+v", ok, rec)
	}
	done(t, r, d)
}
