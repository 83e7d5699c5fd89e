package killtest

// A user who sets no option waits longest for the messages of a process that was killed. So both processes here are
// consumers without one.

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

const (
	// Holder is the role of a consumer with no option set, whose handlers never end.
	Holder = "holder"
	// HeldQueue is its queue.
	HeldQueue = "held"

	heldTopic = "orders.held"
	holds     = "holds " // a line of Hold begins so
)

// heldIDs are the ids of the messages that the process holds when it is killed.
var heldIDs = []string{"held-1", "held-2"}

func consume(ctx context.Context, bus core.Transport, handle waybill.HandleFunc) error {
	c, err := consumer.New(bus, consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	sub := waybill.Subscription{Queue: HeldQueue, Bindings: []string{heldTopic}}
	if err := c.Handle(sub, waybill.Handler{Name: waybill.AnyMessage, Handle: handle}); err != nil {
		return err
	}
	return c.Run(ctx)
}

// Hold is the process with the role Holder, over a bus with no option set. It ends when it is killed.
func Hold(ctx context.Context, bus core.Transport) error {
	return consume(ctx, bus, func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		fmt.Fprintln(os.Stderr, holds+d.Envelope.ID)
		<-ctx.Done()
		return 0, context.Cause(ctx)
	})
}

// Missed kills a process that holds messages, while another consumer runs. Neither has an option set.
type Missed struct {
	Bus core.Transport // of the other one
	Env []string       // that the process gets
	// Held, if not nil, is called when the process holds all messages, and Killed when it was killed.
	Held, Killed func()
}

// Run returns when the other consumer has each message. A death counts as one redelivery.
func (m *Missed) Run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := m.Bus.Subscribe(ctx, core.Subscription{Queue: HeldQueue, Bindings: []string{heldTopic}})
	if err == nil {
		err = r.Close(ctx) // the queue is there
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range heldIDs {
		e := waybill.Envelope{ID: id, Topic: heldTopic, Type: heldTopic, Source: "/test"}
		if err := m.Bus.Publish(ctx, []waybill.Envelope{e}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	p := sharedtest.StartProcess(t, append(m.Env, roleEnv+"="+Holder)...)
	patience.Until(t, "the process holds all messages", func() bool {
		return strings.Count(p.Log.String(), holds) == len(heldIDs)
	})
	var mu sync.Mutex
	redeliveries := map[string]int{}
	ended := make(chan error, 1)
	go func() {
		ended <- consume(ctx, m.Bus, func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			mu.Lock()
			defer mu.Unlock()
			redeliveries[d.Envelope.ID] = d.Redeliveries
			return 0, nil
		})
	}()
	if m.Held != nil {
		m.Held()
	}
	p.Kill()
	if m.Killed != nil {
		m.Killed()
	}
	patience.Until(t, "the other consumer has all messages", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(redeliveries) == len(heldIDs)
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for id, n := range redeliveries {
		if n != 1 {
			t.Errorf("%s came with %d redeliveries, want 1", id, n)
		}
	}
}
