package sqs_test

// The suite checks parked messages. These tests are about walks over a dead-letter queue: SQS cannot list, so a walk
// hides messages for a while.

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv/fakesqs"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// parkedBus returns a transport with n parked messages of queue q, and the receiver of q.
func parkedBus(t *testing.T, opts sqstransport.Options, n int) (*fakesqs.Server, *sqstransport.Transport, core.Receiver) {
	t.Helper()
	fake := startFake(t)
	bus := newBus(t, newClient(t, fake.URL()), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	parkMore(t, bus, r, "m", n)
	return fake, bus, r
}

func parkMore(t *testing.T, bus *sqstransport.Transport, r core.Receiver, id string, n int) {
	t.Helper()
	for i := range n {
		publish(t, bus, waybill.Envelope{ID: fmt.Sprint(id, i), Topic: "a", Body: []byte("body")})
		settle(t, r, core.AckReject(receive(t, r), waybill.ReasonRejected, errors.New("no good")))
	}
}

// hidden returns how many messages of the dead-letter queue are not to be seen.
func hidden(t *testing.T, fake *fakesqs.Server, opts sqstransport.Options) string {
	t.Helper()
	return fake.Described(opts.ParkedName("q"))["ApproximateNumberOfMessagesNotVisible"]
}

// RM-08: a look leaves all messages to be seen at once, also those that it received ahead.
func TestLookAtParkedHidesNothing(t *testing.T) {
	t.Parallel()
	for _, fifo := range []bool{false, true} {
		opts := quick(fifo)
		fake, bus, _ := parkedBus(t, opts, 12)
		for range 2 {
			if found, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 3); err != nil || len(found) != 3 || found[0].Envelope.ID != "m0" {
				t.Errorf("found %d: %v", len(found), err)
			}
			if n := hidden(t, fake, opts); n != "0" {
				t.Errorf("%s messages are hidden", n)
			}
		}
		if n, err := bus.ParkedDepth(t.Context(), "q"); n != 12 || err != nil {
			t.Errorf("%d are parked: %v", n, err)
		}
	}
}

// RM-08: a message that was hidden for too long is visible again. A slow replay leaves it to another one, or takes it
// when it comes again: it is replayed once.
func TestSlowReplay(t *testing.T) {
	t.Parallel()
	fake, bus, r := parkedBus(t, quick(false), 3)
	slow, fast := 0, 0
	n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true, Edit: func(p admin.Parked) ([]byte, error) {
		if slow++; slow == 1 { // the editor was open for long
			fake.Advance(3 * time.Minute)
			var err error
			if fast, err = bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true, Limit: 1}); err != nil {
				t.Error(err)
			}
		}
		return p.Envelope.Body, nil
	}})
	if err != nil || fast != 1 || n != 2 {
		t.Errorf("replayed %d and %d: %v", fast, n, err)
	}
	came := map[string]int{}
	for range 3 {
		d := receive(t, r)
		came[d.Envelope.ID]++
		settle(t, r, core.AckDone(d))
	}
	if len(came) != 3 {
		t.Errorf("came: %v", came)
	}
}

// RM-08: a call leaves alone what is parked after it began, and replays a message once although it is parked again.
func TestParkedMeanwhile(t *testing.T) {
	t.Parallel()
	fake, bus, r := parkedBus(t, quick(false), 11)
	once := false
	n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true, Result: func(admin.Parked, error) {
		if !once {
			once = true
			// at once, by the same clock
			settle(t, r, core.AckReject(receive(t, r), waybill.ReasonRejected, nil))
			for range 9 {
				settle(t, r, core.AckDone(receive(t, r)))
			}
			fake.Advance(time.Minute)
			parkMore(t, bus, r, "later", 1)
		}
	}})
	if err != nil || n != 11 {
		t.Errorf("replayed %d: %v", n, err)
	}
	if n, err := bus.ParkedDepth(t.Context(), "q"); n != 2 || err != nil {
		t.Errorf("%d are parked: %v", n, err)
	}
}

// RM-08: a message that SQS moved by itself, or that a foreign program sent, has a reason, a time and a first attempt.
func TestParkedBySQS(t *testing.T) {
	t.Parallel()
	fake := startFake(t)
	opts := quick(false)
	bus := newBus(t, newClient(t, fake.URL()), opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, waybill.Envelope{ID: "one", Topic: "a"})
	for range opts.DeliveryLimit {
		receive(t, r)
		fake.Advance(opts.HoldFor)
	}
	publish(t, bus, waybill.Envelope{ID: "two", Topic: "a"})
	for d := receive(t, r); d.Envelope.ID != "two"; d = receive(t, r) {
		fake.Advance(opts.HoldFor)
	}
	found, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{IDs: []string{"one"}}, 10)
	if err != nil || len(found) != 1 || found[0].Reason != waybill.ReasonDeliveries || found[0].At.IsZero() || found[0].Queue != "q" || found[0].Attempts != 1 {
		t.Fatalf("%+v: %v", found, err)
	}
	if n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", Filter: admin.ParkedFilter{IDs: []string{"one"}}}); n != 1 || err != nil {
		t.Fatalf("replayed %d: %v", n, err)
	}
	if d := receive(t, r); d.Envelope.ID != "one" || d.Attempt != 1 || d.Redeliveries != 0 {
		t.Errorf("%+v", d)
	}
}

// RM-08: a message that cannot be sent stays parked and is told, and the others go on. An outage ends the call, and a
// message that could not be deleted stays parked.
func TestReplayFails(t *testing.T) {
	t.Parallel()
	opts := quick(false)
	fake, bus, _ := parkedBus(t, opts, 3)
	replay := func(fault func(fakesqs.Request) *fakesqs.Error) (n, failed int, err error) {
		fake.Fail(fault)
		defer fake.Fail(nil)
		n, err = bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true, Result: func(_ admin.Parked, err error) {
			if err != nil {
				failed++
			}
		}})
		return n, failed, err
	}
	n, failed, err := replay(func(r fakesqs.Request) *fakesqs.Error {
		if r.Action == "DeleteMessageBatch" && r.Entry == -1 {
			return &fakesqs.Error{Code: "InternalError", Status: 500, Server: true}
		}
		return nil
	})
	if n != 0 || failed != 3 || waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("not deleted: %d, %d failed: %v", n, failed, err)
	}
	n, failed, err = replay(func(r fakesqs.Request) *fakesqs.Error {
		if r.Action == "SendMessageBatch" && r.Entry == 1 {
			return &fakesqs.Error{Code: "InvalidMessageContents"}
		}
		return nil
	})
	if n != 2 || failed != 1 || err != nil {
		t.Errorf("one refused: %d, %d failed: %v", n, failed, err)
	}
	if n, err := bus.ParkedDepth(t.Context(), "q"); n != 1 || err != nil {
		t.Errorf("%d are parked: %v", n, err)
	}
}

// RM-08: a walk hides a bounded number of messages, and says so. A dead-letter queue from which SQS would move messages
// is refused.
func TestParkedLimits(t *testing.T) {
	t.Parallel()
	opts := quick(false)
	fake, bus, _ := parkedBus(t, opts, 30)
	walks := sqstransport.Walks(bus, 10)
	n, err := walks.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", Filter: admin.ParkedFilter{IDs: []string{"m29"}}})
	if n != 0 || err == nil || !strings.Contains(err.Error(), "replay or purge some of them first") {
		t.Errorf("replayed %d: %v", n, err)
	}
	if n := hidden(t, fake, opts); n != "0" {
		t.Errorf("%s messages are hidden", n)
	}
	if n, err := walks.PurgeParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true}); n != 30 || err != nil {
		t.Errorf("purged %d: %v", n, err)
	}
	fake.SetAttribute(opts.ParkedName("q"), "RedrivePolicy", `{"maxReceiveCount":1}`)
	if _, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 1); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "RedrivePolicy") {
		t.Error(err)
	}
}
