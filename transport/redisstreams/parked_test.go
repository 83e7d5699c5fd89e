package redisstreams_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// parkAll publishes the batch and rejects it.
func parkAll(t *testing.T, bus *redisstreams.Transport, r core.Receiver, batch []waybill.Envelope) {
	t.Helper()
	publish(t, bus, batch...)
	for _, d := range receive(t, r, len(batch)) {
		settle(t, r, core.AckReject(d, waybill.ReasonRejected, errors.New("no")))
	}
}

// RM-08: a listing of many pages has each message once, with its position.
func TestParkedPages(t *testing.T) {
	t.Parallel()
	bus := dial(t, testenv.Redis(t), redisstreams.Options{})
	const n = 250 // three pages
	parkAll(t, bus, subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}}), envelopes(n, "a"))
	list, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 2*n)
	if err != nil || len(list) != n {
		t.Fatalf("%d of %d are listed: %v", len(list), n, err)
	}
	for i, p := range list {
		if p.Position != i+1 || p.Envelope.ID != fmt.Sprintf("m%05d", i) {
			t.Fatalf("%s at position %d, want number %d", p.Envelope.ID, p.Position, i+1)
		}
	}
	if n, err := bus.ParkedDepth(t.Context(), "q"); err != nil || n != len(list) {
		t.Errorf("counted %d: %v", n, err)
	}
}

// RM-08: a full queue ends a replay with an outage of its topic. The messages that did not fit stay parked.
func TestReplayIntoAFullQueue(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{MaxLen: 3})
	bus := dial(t, url, opts)
	parkAll(t, bus, subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}}), envelopes(3, "a"))
	publish(t, bus, envelopes(2, "a")...)
	keys := queueKeys{t, raw(t, url), opts.Bus}
	for round, want := range []int{1, 0} {
		n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true})
		full, ok := errors.AsType[*waybill.Error](err)
		if n != want || !ok || full.Class != waybill.ClassOutage || !full.TopicOnly {
			t.Errorf("round %d: replayed %d, %v", round, n, err)
		}
		if queue, parked := keys.len("queue", "q"), keys.len("parked", "q"); queue != 3 || parked != 2 {
			t.Errorf("round %d: %d in the queue, %d parked", round, queue, parked)
		}
	}
}
