package table_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/table"
)

// TestHandlerOfALostMessage: when a process learns that another one has a message, the context of its handler ends. The
// handler's result then changes nothing, and no handler begins for such a message.
//
// TQ-05
func TestHandlerOfALostMessage(t *testing.T) {
	t.Parallel()
	for _, batch := range []bool{false, true} {
		t.Run(map[bool]string{false: "alone", true: "in a batch"}[batch], func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newStore(t)
				stage(t, s, message("a"), message("b"))
				causes := make(chan error, 2)
				var mu sync.Mutex
				handled := map[string]int{}
				wait := func(ctx context.Context) error {
					<-ctx.Done()
					causes <- context.Cause(ctx)
					return errors.New("gave up")
				}
				h := waybill.Handler{Name: waybill.AnyMessage, Handle: func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
					mu.Lock()
					handled[d.Envelope.ID]++
					mu.Unlock()
					return waybill.HandlerProcessed, wait(ctx)
				}}
				if batch {
					h.BatchSize = 2
					h.Batch = func(ctx context.Context, _ []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
						return nil, wait(ctx)
					}
				}
				var log bytes.Buffer
				p := newProcess(s)
				c, err := consumer.New(newTable(t, p, table.Options{Lease: time.Second}), consumer.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Handle(waybill.Subscription{Queue: "mails"}, h); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- c.Run(ctx) }()
				time.Sleep(time.Second) // virtual time
				p.gone.Store(true)
				other := subscribe(t, newTable(t, s, table.Options{Lease: time.Second}))
				taken := receive(t, other, 2)
				for len(taken) < 2 {
					taken = append(taken, receive(t, other, 1)...)
				}
				select {
				case err := <-causes:
					t.Fatal("it cannot know yet", err)
				default:
				}
				p.gone.Store(false)
				select {
				case err := <-causes:
					if !errors.Is(err, waybill.ErrLeaseLost) {
						t.Errorf("the context ended because of %v", err)
					}
				case <-tenMinutes(t).Done():
					t.Fatal("the context never ended")
				}
				time.Sleep(time.Second) // virtual time
				settled(t, other, core.AckDone(taken[0]), core.AckDone(taken[1]))
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if want := map[bool]int{false: 1, true: 0}[batch]; handled["a"] != want {
					t.Errorf("it was handled alone %d times, want %d", handled["a"], want)
				}
				out := log.String()
				if strings.Contains(out, "consumer.retry") {
					t.Errorf("a retry was reported:\n%s", out)
				}
				for _, id := range []string{"a", "b"} { // one line tells of the loss
					lines := regexp.MustCompile(`(?m)^.*level=WARN.* id=`+id+` .*$`).FindAllString(out, -1)
					if len(lines) != 1 || !strings.Contains(lines[0], "event=consumer.lease_lost") || !strings.Contains(lines[0], "phase=renew") ||
						!strings.Contains(lines[0], "deliveries=1") {
						t.Errorf("the log of %s:\n%s", id, strings.Join(lines, "\n"))
					}
				}
				for _, r := range s.mem.Records() {
					t.Errorf("%s is left %s after %d attempts", r.Envelope.ID, r.State, r.Attempts)
				}
			})
		})
	}
}

// TestLeaseOfAQueue: a queue's own lease counts, not the one of the transport.
//
// TQ-05
func TestLeaseOfAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, message("a"))
		opts := table.Options{Lease: time.Hour, Queues: map[string]table.QueueOptions{"mails": {Lease: time.Second}}}
		p := newProcess(s)
		receive(t, subscribe(t, newTable(t, p, opts)), 1)
		p.gone.Store(true)
		begin := time.Now()
		d := receive(t, subscribe(t, newTable(t, s, opts)), 1)[0]
		if took := time.Since(begin); d.Redeliveries != 1 || took > 10*time.Second {
			t.Errorf("it came after %s, with %d redeliveries", took, d.Redeliveries)
		}
	})
}
