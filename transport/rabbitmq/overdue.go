package rabbitmq

import (
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// maxOverdue bounds the messages that are counted.
const maxOverdue = 1000

// overdue counts how often the broker took a message back because it was held for longer than consumer_timeout. Up to
// RabbitMQ 4.2 the broker counts that as a redelivery itself. From 4.3 on it does not. Then a handler that never ends
// would get its message again for ever, so this process counts.
type overdue struct {
	mu     sync.Mutex
	counts map[messageID]int
}

type messageID struct{ source, id string }

func idOf(d *waybill.Delivery) messageID { return messageID{d.Envelope.Source, d.Envelope.ID} }

// add counts one more for each of ids.
func (o *overdue) add(ids []messageID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		if o.counts == nil || len(o.counts) >= maxOverdue {
			o.counts = map[messageID]int{}
		}
		o.counts[id]++
	}
}

// of returns the count of a delivery that the broker did not count.
func (o *overdue) of(d *waybill.Delivery) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.counts) == 0 {
		return 0
	}
	return o.counts[idOf(d)]
}

// settled ends the count of messages whose verdict is stored.
func (o *overdue) settled(acks []core.Ack, results core.Results) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.counts) == 0 {
		return
	}
	for i := range acks {
		if results[i] == nil && acks[i].Verdict != core.VerdictRelease {
			delete(o.counts, idOf(acks[i].Delivery))
		}
	}
}

// heldTooLong returns the deliveries for which the broker may have cancelled the consumer: the one that is held for
// longest, and all that are held for at least limit.
func (a *acks) heldTooLong(limit time.Duration) (ids []messageID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var oldest time.Time
	for _, u := range a.unacked.from(0) {
		if u.d == nil {
			continue
		}
		if oldest.IsZero() || u.since.Before(oldest) {
			oldest = u.since
		}
	}
	for _, u := range a.unacked.from(0) {
		if u.d != nil && (u.since.Equal(oldest) || limit > 0 && time.Since(u.since) >= limit) {
			ids = append(ids, idOf(u.d))
		}
	}
	return ids
}
