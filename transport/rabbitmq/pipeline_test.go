package rabbitmq_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// With PipelineKeys nothing of a key leaves behind a message that could not be sent; the same without a key does.
func TestPipelineKeysStops(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{PipelineKeys: true})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	batch := envelopes(12, "a")
	keys := []string{"k", "other", ""}
	for i := range batch {
		batch[i].Key = keys[i%3]
	}
	const first = 3 // of key k
	for i := first; i < first+3; i++ {
		if batch[i].Key != "other" {
			batch[i].Source = strings.Repeat("s", 256)
		}
	}
	var want []string
	for i, err := range bus.Publish(t.Context(), batch) {
		switch {
		case err == nil:
			want = append(want, batch[i].ID)
		case batch[i].Key == "k" && i > first && !errors.Is(err, waybill.ErrPredecessorFailed):
			t.Errorf("message %d: %v", i, err)
		}
	}
	if d := strings.Join(want, " "); d != "m00000 m00001 m00002 m00004 m00007 m00008 m00010 m00011" {
		t.Errorf("published %s", d)
	}
	arrived := strings.Fields(ids(receive(t, r, len(want))))
	if !slices.Equal(arrived, want) {
		t.Errorf("in the queue are %s, published %s", arrived, want)
	}
	if err := bus.Publish(t.Context(), batch[6:]).FirstErr(); err != nil {
		t.Errorf("the rest, sent again: %v", err)
	}
	if got := ids(receive(t, r, 6)); got != "m00006 m00007 m00008 m00009 m00010 m00011" {
		t.Errorf("next in the queue are %s", got)
	}
}
