package sharedtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// ReceiveIsBounded checks that a Receive with room for a thousand messages returns no more bodies than
// core.Subscription.ReceiveBytes and slack allow, also those that were released. All small ones come together. An
// adapter reads up to slack messages at once.
func ReceiveIsBounded(t *testing.T, bus core.Transport, slack int) {
	t.Helper()
	const bound, size, large, small = 100_000, 10_000, 200, 500
	r, err := bus.Subscribe(t.Context(), core.Subscription{
		Queue: "bounded", Bindings: []string{"bounded"}, Concurrency: 10, Prefetch: 10, MaxPrefetch: 1000, ReceiveBytes: bound,
	})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(n, size int) {
		t.Helper()
		batch := make([]waybill.Envelope, n)
		for i := range batch {
			batch[i] = waybill.Envelope{
				ID: fmt.Sprintf("%d-%d", size, i), Source: "/tests", Type: "bounded", Topic: "bounded", Time: time.Unix(1_700_000_000, 0).UTC(), Body: make([]byte, size),
			}
		}
		if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	receive := func(n int, each func(ds []*waybill.Delivery)) (most int) {
		t.Helper()
		for came := 0; came < n; {
			ds, err := r.Receive(ctx, 1000)
			if err != nil {
				t.Fatalf("after %d of %d: %v", came, n, err)
			}
			bytes := 0
			for _, d := range ds {
				bytes += len(d.Envelope.Body)
			}
			each(ds)
			most = max(most, bytes)
			came += len(ds)
		}
		return most
	}
	settle := func(ds []*waybill.Delivery, verdict func(*waybill.Delivery) core.Ack) {
		t.Helper()
		acks := make([]core.Ack, len(ds))
		for i, d := range ds {
			acks[i] = verdict(d)
		}
		if err := r.Settle(ctx, acks).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	done := func(ds []*waybill.Delivery) { settle(ds, core.AckDone) }
	publish(large, size)
	var held []*waybill.Delivery
	most := receive(large, func(ds []*waybill.Delivery) { held = append(held, ds...) })
	settle(held, core.AckRelease)
	again := receive(large, done)
	t.Logf("%d bytes at once, released ones %d", most, again)
	if most := max(most, again); most > bound+slack*size {
		t.Errorf("a Receive returned %d bytes, want at most %d", most, bound+slack*size)
	}
	publish(small, 10)
	if most := receive(small, done); most != small*10 {
		t.Errorf("a Receive returned %d bytes of %d small messages together", most, small)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
