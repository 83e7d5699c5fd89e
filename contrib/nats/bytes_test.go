package nats_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// CO-26: with ReceiveBytes the server sends no more than that ahead. A larger message comes alone.
func TestPullsAreBounded(t *testing.T) {
	t.Parallel()
	const bound, n, large = 100_000, 200, 3
	bus := dial(t, startServer(t, nil).url(), nats.Options{HoldFor: time.Hour})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}, MaxPrefetch: 1000, ReceiveBytes: bound})
	batch := make([]waybill.Envelope, n)
	for i := range batch {
		batch[i] = waybill.Envelope{ID: strconv.Itoa(i), Source: "/tests", Type: "a", Topic: "a", Time: time.Now(), Body: make([]byte, 10_000)}
	}
	for i := range large {
		batch[i*n/large].Body = make([]byte, 4*bound)
	}
	if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
	defer cancel()
	most, came, alone := 0, 0, 0
	for came < n {
		ds, err := r.Receive(ctx, 1000)
		if err != nil {
			t.Fatalf("after %d of %d: %v", came, n, err)
		}
		bytes := 0
		for _, d := range ds {
			bytes += len(d.Envelope.Body)
		}
		if bytes > bound {
			alone++
			if len(ds) > 1 {
				t.Errorf("a large message came with %d others", len(ds)-1)
			}
		} else {
			most = max(most, bytes+nats.FetchedBytes(r))
		}
		came += len(ds)
		for _, d := range ds {
			done(t, r, d)
		}
	}
	if most > bound || alone != large {
		t.Errorf("%d bytes were here at once, want at most %d; %d large ones came, want %d", most, bound, alone, large)
	}
}
