package transform_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/transform"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/waybilltest/faults"
)

// late is a key source that has the key "new" later.
type late struct{ there atomic.Bool }

func (l *late) find(_ context.Context, id string) ([]byte, error) {
	if secret, ok := keys[id]; ok && (id != "new" || l.there.Load()) {
		return secret, nil
	}
	return nil, transform.ErrNoKey
}

// A message that names a coding, a key or a blob which never was stops no other one, and is parked as undecodable. One
// whose key comes within the delays of the subscription is handled.
func TestForgedMessageStopsNobody(t *testing.T) { // ST-18
	t.Parallel()
	claim := fmt.Sprintf(`{"blob":"%s","size":1}`, strings.Repeat("a", 64))
	for name, forged := range map[string]waybill.Envelope{
		"coding": {Headers: map[string]string{transform.Header: "waybill-aes256gcm, x-unknown"}, Body: []byte("x")},
		"key":    {Headers: map[string]string{transform.Header: "waybill-aes256gcm"}, Body: append([]byte("\x01\x03zzz"), make([]byte, 50)...)},
		"blob":   {Headers: map[string]string{transform.Header: "waybill-aes256gcm, claim-check"}, Body: []byte(claim)},
	} {
		for _, concurrency := range []int{1, 8} {
			t.Run(fmt.Sprint(name, " ", concurrency), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					patience.BudgetOf(t).Time(time.Hour, "the default delays of retries are some minutes")
					bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "q", Bindings: []string{"#"}}}})
					if err != nil {
						t.Fatal(err)
					}
					source := &late{}
					steps := []transform.Step{transform.Gzip{}, transform.Encrypt{Keys: source.find}, transform.ClaimCheck{Blobs: &blobs{}}}
					var mu sync.Mutex
					handled := map[string]int{}
					count := func() int {
						mu.Lock()
						defer mu.Unlock()
						return len(handled)
					}
					h, err := transform.Handler(waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
						time.Sleep(100 * time.Millisecond)
						mu.Lock()
						defer mu.Unlock()
						handled[d.Envelope.ID]++
						return waybill.HandlerProcessed, nil
					}}, steps...)
					if err != nil {
						t.Fatal(err)
					}
					c, err := consumer.New(faults.Subscriber(bus, counted(t)), consumer.Options{})
					if err != nil {
						t.Fatal(err)
					}
					if err := c.Handle(waybill.Subscription{Queue: "q", Concurrency: concurrency}, h); err != nil {
						t.Fatal(err)
					}
					forged.ID, forged.Source, forged.Topic = "forged", "/payments", "payments.made"
					batch := []waybill.Envelope{forged}
					for i := range 101 {
						e := payment.Clone()
						e.ID, e.Key = fmt.Sprint("pay-", i), ""
						id := "old"
						if i == 0 {
							id = "new"
						}
						batch = append(batch, sealed(t, e, encrypt(id)))
					}
					if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan error, 1)
					go func() { ended <- c.Run(ctx) }()
					patience.Pass(t, time.Minute)
					if n := count(); n != 100 {
						t.Errorf("%d of 100 were handled within a minute", n)
					}
					patience.Pass(t, 4*time.Minute)
					source.there.Store(true)
					patience.Pass(t, 5*time.Minute)
					cancel()
					if err := <-ended; err != nil {
						t.Error(err)
					}
					parked := bus.Parked("q")
					if n := count(); n != 101 || len(parked) != 1 || parked[0].Reason != waybill.ReasonUndecodable || parked[0].Envelope.ID != "forged" {
						t.Errorf("%d of 101 were handled, parked %+v", n, parked)
					}
				})
			})
		}
	}
}
