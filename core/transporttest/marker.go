package transporttest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A check does not wait for the absence of a message. It publishes a marker behind: a message that has not come before
// the marker does not come. A check does not see markers; the guard of a receiver takes them out.

const markerID = "marker/"

// line is the suite's knowledge of a queue.
type line struct {
	topic string // of a binding; "" if none is known
	open  []guardedReceiver
}

// line returns the knowledge of a queue. k.mu is held.
func (k *kit) line(queue string) *line {
	if k.lines == nil {
		k.lines, k.seen = map[string]*line{}, map[string]bool{}
	}
	if k.lines[queue] == nil {
		k.lines[queue] = &line{}
	}
	return k.lines[queue]
}

// opened notes a receiver that the check's end closes.
func (k *kit) opened(r guardedReceiver, bindings []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.receivers = append(k.receivers, r)
	l := k.line(r.queue)
	l.open = append(l.open, r)
	if len(bindings) > 0 && l.topic == "" {
		l.topic = strings.NewReplacer("*", "marker", "#", "marker").Replace(bindings[0])
	}
}

// closed forgets a receiver.
func (k *kit) closed(r guardedReceiver) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.line(r.queue)
	for i, o := range l.open {
		if o.Receiver == r.Receiver {
			l.open = append(l.open[:i:i], l.open[i+1:]...)
			return
		}
	}
}

// unmarked settles the markers among ds, and returns the others.
func (r guardedReceiver) unmarked(ctx context.Context, ds []*waybill.Delivery) (rest []*waybill.Delivery) {
	var marks []core.Ack
	for _, d := range ds {
		if !strings.HasPrefix(d.Envelope.ID, markerID) {
			rest = append(rest, d)
			continue
		}
		marks = append(marks, core.AckDone(d))
		r.k.mu.Lock()
		r.k.seen[r.queue+d.Envelope.ID] = true
		r.k.mu.Unlock()
	}
	if len(marks) > 0 {
		r.Settle(context.WithoutCancel(ctx), marks)
	}
	return rest
}

// behind publishes a marker, and receives from all that share r's queue until it has come. It passes the deliveries of
// each to each.
func (k *kit) behind(r core.Receiver, each func(r core.Receiver, ds []*waybill.Delivery)) {
	g := r.(guardedReceiver) //nolint:forcetypeassert // all receivers of a check are guarded
	k.mu.Lock()
	l := *k.line(g.queue)
	k.marks++
	m := waybill.Envelope{ID: fmt.Sprint(markerID, k.marks), Topic: l.topic}
	k.mu.Unlock()
	k.publish(m)
	ctx, moved, cancel := k.patient(0)
	defer cancel()
	for i := 0; len(l.open) > 0; i++ {
		k.mu.Lock()
		seen := k.seen[g.queue+m.ID]
		k.mu.Unlock()
		if seen {
			return
		}
		k.failIf(ctx.Err() != nil, "a message that was published behind all others did not come within %s", stands)
		o := l.open[i%len(l.open)]
		brief := min(quiet/10*time.Duration(1+i/len(l.open)), time.Second)
		ds, err := receiveBriefly(ctx, o, 1, brief)
		k.must("receive", err)
		if len(ds) > 0 {
			moved()
			each(o, ds)
		}
	}
}

// nothing fails if r, or another receiver of its queue, has deliveries.
func (k *kit) nothing(r core.Receiver, why string) {
	k.behind(r, func(_ core.Receiver, got []*waybill.Delivery) {
		k.fail("%s, but message %s came (attempt %d)", why, got[0].Envelope.ID, got[0].Attempt)
	})
}

// drain receives and settles the messages that are there.
func (k *kit) drain(r core.Receiver) (all []*waybill.Delivery) {
	k.behind(r, func(r core.Receiver, ds []*waybill.Delivery) {
		k.settle(r, acks(core.AckDone, ds...)...)
		all = append(all, ds...)
	})
	return all
}

// full waits a moment and fails if r has deliveries. A receiver that holds its limit gets no marker.
func (k *kit) full(r core.Receiver, why string) {
	ctx, cancel := context.WithTimeout(k.ctx, quiet)
	defer cancel()
	if got, err := collect(ctx, r, 1, func([]*waybill.Delivery) error { return nil }); err == nil {
		k.fail("%s, but message %s came (attempt %d)", why, got[0].Envelope.ID, got[0].Attempt)
	} else if ctx.Err() == nil {
		k.must("receive", err)
	}
}
