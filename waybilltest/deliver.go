package waybilltest

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Queue is the queue of deliveries that name none.
const Queue = "test"

// Result is what became of one delivery.
type Result struct {
	// Status is how the handler succeeded: waybill.HandlerDuplicate if it had had its effect before.
	Status waybill.HandlerStatus
	// Err is the handler's error; a panic is an error with its stack.
	Err error
	// Verdict is what the runner would do: done, retry (if the policy has attempts left), reject (park), or release
	// and pause.
	Verdict core.Verdict
	// Reason is why it would be parked.
	Reason waybill.Reason
}

// Delivery returns a first delivery of v on topic, with a fresh id and the source "/test". It fails the test if v
// cannot be encoded.
func Delivery[T any](tb TB, topic waybill.Topic[T], v T, opts ...waybill.MessageOption) *waybill.Delivery {
	tb.Helper()
	stamper, err := core.NewStamper(core.StamperOptions{Source: "/test"})
	if err != nil {
		tb.Fatalf("waybilltest: %v", err)
	}
	rows, err := stamper.Stamp(tb.Context(), []waybill.Message{topic.Message(v, opts...)})
	if err != nil {
		tb.Fatalf("waybilltest: %v", err)
	}
	return &waybill.Delivery{Envelope: rows[0].Envelope, Queue: Queue, Attempt: 1}
}

// Deliver calls h with d, as the runner would: with the context of a handler, catching panics. A delivery with Err does
// not reach h. Any waybill.Handler will do, with or without an inbox, on any database.
func Deliver(ctx context.Context, h waybill.Handler, d *waybill.Delivery) Result {
	if d.Err != nil {
		return Result{Err: d.Err, Verdict: core.VerdictReject, Reason: reason(d.Err, waybill.ReasonUndecodable)}
	}
	st, err := call(waybill.WithDelivery(ctx, d), h, d)
	r := Result{Status: st, Err: err, Verdict: core.VerdictDone}
	switch class := waybill.ClassOf(err); {
	case err == nil:
	case class == waybill.ClassOutage:
		r.Verdict = core.VerdictRelease
	case class == waybill.ClassPermanent:
		r.Verdict, r.Reason = core.VerdictReject, reason(err, waybill.ReasonRejected)
	default:
		r.Verdict = core.VerdictRetry
	}
	return r
}

func reason(err error, otherwise waybill.Reason) waybill.Reason {
	if r := waybill.ReasonOf(err); r != waybill.ReasonNone {
		return r
	}
	return otherwise
}

func call(ctx context.Context, h waybill.Handler, d *waybill.Delivery) (st waybill.HandlerStatus, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", p, debug.Stack())
		}
	}()
	if h.Handle == nil {
		return 0, fmt.Errorf("handler %q has no function", h.Name)
	}
	return h.Handle(ctx, d)
}

// find returns the handler for e: by type, by topic, or the one for every message.
func find(handlers []waybill.Handler, e *waybill.Envelope) (waybill.Handler, bool) {
	for _, name := range [...]string{e.Type, e.Topic, waybill.AnyMessage} {
		for _, h := range handlers {
			if h.Name == name && name != "" {
				return h, true
			}
		}
	}
	return waybill.Handler{}, false
}
