package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// MaxMessageBytes bounds a message, as Envelope.Size counts it. As base64, with its attributes and with those of a
// copy, it fits into the 1 MiB that SQS takes.
const MaxMessageBytes = 704 << 10

// MaxTopicMessageBytes is the same for a topic of SNS, which takes 256 KiB.
const MaxTopicMessageBytes = 176 << 10

// spare is what a copy adds to a message.
const spare = 8 << 10

// Publish sends each message to all queues that are bound for its topic, or to the topic of SNS; see core.Publisher. A
// nil result means that SQS confirmed every copy, or that SNS confirmed the message. After an error some queues can
// have the message.
func (t *Transport) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	ctx, end, ok := t.begin(ctx)
	defer end()
	if !ok {
		return core.AllFailed(len(batch), closed(opPublish))
	}
	if err := t.verifyOnce(ctx); err != nil {
		return core.AllFailed(len(batch), err)
	}
	p := publishing{t: t, batch: batch, results: make(core.Results, len(batch)), byName: map[string][]entry{}}
	if t.opts.FIFO {
		p.dedup = make([]string, len(batch))
	}
	routes := map[string][]string{}
	for i := range batch {
		topic := batch[i].Topic
		targets, known := routes[topic]
		if !known {
			targets = t.targets(topic)
			routes[topic] = targets
		}
		p.add(i, &batch[i], targets)
	}
	var wg sync.WaitGroup
	for name, entries := range p.byName {
		wg.Go(func() { t.send(ctx, opPublish, name, entries, p.fail) })
	}
	wg.Wait()
	for i, id := range p.dedup {
		t.repeats.Note(&batch[i], id, p.results[i])
	}
	return p.results
}

// publishing is one Publish.
type publishing struct {
	t       *Transport
	batch   []waybill.Envelope
	mu      sync.Mutex
	results core.Results
	byName  map[string][]entry
	dedup   []string // FIFO only: the deduplication id of each message
}

// add prepares a message for its queues, by their names in SQS, or for the topic of SNS, by its ARN.
func (p *publishing) add(i int, e *waybill.Envelope, targets []string) {
	w, err := encode(e)
	most, text := p.t.maxMessageBytes()
	switch size := w.size(); {
	case err != nil:
		p.results[i] = permanent(opPublish, waybill.ReasonRejected, err)
		return
	case len(e.Topic) > waybill.MaxNameBytes:
		p.results[i] = permanent(opPublish, waybill.ReasonRejected, fmt.Errorf("the topic has %d bytes, more than %d", len(e.Topic), waybill.MaxNameBytes))
		return
	case e.Size() > most:
		p.results[i] = permanent(opPublish, waybill.ReasonTooLarge, fmt.Errorf("topic %q: the message has %d bytes, more than %d: send a reference", clip(e.Topic), e.Size(), most))
		return
	case size > text:
		p.results[i] = permanent(opPublish, waybill.ReasonTooLarge, fmt.Errorf("topic %q: the message has %d bytes as text, more than %d: send a reference", clip(e.Topic), size, text))
		return
	case len(targets) == 0:
		p.results[i] = rejected(opPublish, fmt.Errorf("topic %q: %w (Options.Bindings)", clip(e.Topic), waybill.ErrUnroutable))
		return
	}
	if p.t.opts.FIFO {
		p.dedup[i] = cmp.Or(p.t.repeats.ID(e), waybill.NewID())
	}
	for _, name := range targets {
		n := entry{slot: i, w: w}
		if p.t.opts.FIFO {
			n.dedup = p.dedup[i]
			n.group = group(e.Key, n.dedup)
		}
		p.byName[name] = append(p.byName[name], n)
	}
}

// targets returns the names in SQS of the queues that are bound for topic, or the ARN of the topic of SNS.
func (t *Transport) targets(topic string) []string {
	queues := t.queuesFor(topic)
	if t.opts.TopicARN == "" {
		for i := range queues {
			queues[i] = t.opts.QueueName(queues[i])
		}
		return queues
	}
	if len(t.opts.Bindings) > 0 && len(queues) == 0 {
		return nil
	}
	return []string{t.opts.TopicARN}
}

// maxMessageBytes returns the bounds of a message, as Envelope.Size counts it and as text.
func (t *Transport) maxMessageBytes() (size, text int) {
	if t.opts.TopicARN != "" {
		return MaxTopicMessageBytes, maxTopicBytes
	}
	return MaxMessageBytes, maxBytes - spare
}

// fail notes an error of one copy. An outage is a message's result before any other: it costs nothing.
func (p *publishing) fail(n *entry, err error) {
	if waybill.ReasonOf(err) == waybill.ReasonTooLarge {
		e := &p.batch[n.slot]
		err = permanent(opPublish, waybill.ReasonTooLarge, fmt.Errorf("topic %q: the message has %d bytes, %d as text: %w", clip(e.Topic), e.Size(), n.w.size(), errors.Unwrap(err)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.results[n.slot] == nil || waybill.ClassOf(err) == waybill.ClassOutage {
		p.results[n.slot] = err
	}
}
