package rabbitmq

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/core"
)

// A message that was returned, and that a queue then refused, leaves nothing behind: the next one of its id is sent as
// the first one was.
func TestReturnBeforeANack(t *testing.T) {
	t.Parallel()
	pc := &pubChannel{
		ch: new(amqp.Channel), returns: make(chan amqp.Return, 1), ids: map[string]uint64{}, returned: map[uint64]returnInfo{},
	}
	b := &batch{pc: pc, msgs: &copies{}, results: make(core.Results, 1)}
	pc.register("m", 1)
	pc.returns <- amqp.Return{MessageId: "m"}
	// neither confirmed nor closed: a nack
	b.result(&inFlight{id: "m", tag: 1, confirm: new(amqp.DeferredConfirmation)})
	if b.results[0] == nil {
		t.Error("it counts as published")
	}
	if len(pc.returns)+len(pc.returned) > 0 {
		t.Error("its return is kept")
	}
	if !pc.register("m", 2) {
		t.Error("its id is kept")
	}
}
