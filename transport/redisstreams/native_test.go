package redisstreams_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// CO-02: the entry of the stream, with its id and its fields. Its body is held once, in the envelope.
func TestNative(t *testing.T) {
	t.Parallel()
	bus := dial(t, testenv.Redis(t), redisstreams.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, envelope("one", "a"))
	d := receive(t, r, 1)[0]
	x, ok := waybill.Native[redis.XMessage](d)
	if !ok || x.ID == "" || x.Values["ce_id"] != "one" {
		t.Errorf("%t, %+v", ok, x)
	}
	if body, ok := x.Values["data"]; ok || string(d.Envelope.Body) != string(envelope("one", "a").Body) {
		t.Errorf("the body is %q, and %q is held besides", d.Envelope.Body, body)
	}
	settle(t, r, core.AckDone(d))
}
