package sqs

import (
	"context"
	"fmt"
	"sync"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// MaxMessageBytes bounds a message, as Envelope.Size counts it. As base64, with its attributes and with those of a
// copy, it fits into the 1 MiB that SQS takes.
const MaxMessageBytes = 704 << 10

// spare is what a copy adds to a message.
const spare = 8 << 10

// Publish sends each message to all queues that are bound for its topic; see core.Publisher. A nil slot means that SQS
// confirmed every copy. After an error some queues can have the message.
func (t *Transport) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	ctx, end, ok := t.begin(ctx)
	defer end()
	if !ok {
		return core.AllFailed(len(batch), closed(opPublish))
	}
	p := publishing{t: t, results: make(core.Results, len(batch)), byQueue: map[string][]entry{}}
	routes := map[string][]string{}
	for i := range batch {
		topic := batch[i].Topic
		queues, known := routes[topic]
		if !known {
			queues = t.queuesFor(topic)
			routes[topic] = queues
		}
		p.add(i, &batch[i], queues)
	}
	var wg sync.WaitGroup
	for queue, entries := range p.byQueue {
		wg.Go(func() { t.send(ctx, opPublish, t.opts.QueueName(queue), entries, p.fail) })
	}
	wg.Wait()
	return p.results
}

// publishing is one Publish.
type publishing struct {
	t       *Transport
	mu      sync.Mutex
	results core.Results
	byQueue map[string][]entry
}

// add prepares a message for its queues.
func (p *publishing) add(i int, e *waybill.Envelope, queues []string) {
	w, err := encode(e)
	switch size := w.size(); {
	case err != nil:
		p.results[i] = permanent(opPublish, waybill.ReasonRejected, err)
		return
	case len(e.Topic) > waybill.MaxNameBytes:
		p.results[i] = permanent(opPublish, waybill.ReasonRejected, fmt.Errorf("the topic has %d bytes, more than %d", len(e.Topic), waybill.MaxNameBytes))
		return
	case e.Size() > MaxMessageBytes:
		p.results[i] = permanent(opPublish, waybill.ReasonTooLarge, fmt.Errorf("the message has %d bytes, more than %d", e.Size(), MaxMessageBytes))
		return
	case size > maxBytes-spare:
		p.results[i] = permanent(opPublish, waybill.ReasonTooLarge, fmt.Errorf("the message has %d bytes as text, more than %d", size, maxBytes-spare))
		return
	case len(queues) == 0:
		p.results[i] = rejected(opPublish, fmt.Errorf("topic %q: %w (Options.Bindings)", clip(e.Topic), waybill.ErrUnroutable))
		return
	}
	for _, queue := range queues {
		n := entry{slot: i, w: w}
		if p.t.opts.FIFO {
			n.dedup = waybill.NewID()
			n.group = group(e.Key, n.dedup)
		}
		p.byQueue[queue] = append(p.byQueue[queue], n)
	}
}

// fail notes an error of one copy. An outage is a message's result before any other: it costs nothing.
func (p *publishing) fail(n *entry, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.results[n.slot] == nil || waybill.ClassOf(err) == waybill.ClassOutage {
		p.results[n.slot] = err
	}
}
