package rabbitmq

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Publish implements core.Publisher. The messages are sent in order, pipelined on one channel, persistent and
// mandatory. A message that no queue is bound for is waybill.ErrUnroutable; one that a queue refused is an outage of
// its topic. If the context ends, or PublishTimeout passes, before a message was confirmed, its slot is an outage and
// its result is unknown.
func (t *Transport) Publish(ctx context.Context, envelopes []waybill.Envelope) core.Results {
	results := make(core.Results, len(envelopes))
	if len(envelopes) == 0 {
		return results
	}
	b := &envelopeBatch{exchange: t.names.Exchange(), maxBody: t.opts.MaxBodyBytes, prefix: t.opts.PipelineKeys, envelopes: envelopes}
	t.publish(ctx, len(envelopes), b, results)
	if b.prefix {
		failBehind(envelopes, results)
	}
	return results
}

// failBehind fails the messages that were confirmed behind a failed one of their key, as core.KeyOrderPipelinedPrefix
// promises.
func failBehind(envelopes []waybill.Envelope, results core.Results) {
	var failed map[string]bool
	for i := range envelopes {
		switch key := envelopes[i].Key; {
		case key == "":
		case failed[key]:
			if results[i] == nil {
				results[i] = errBehind
			}
		case results[i] != nil:
			if failed == nil {
				failed = map[string]bool{}
			}
			failed[key] = true
		}
	}
}

// publish sends n messages and fills results.
func (t *Transport) publish(ctx context.Context, n int, msgs outgoing, results core.Results) {
	if isClosed(t.closing) {
		fill(results, outage("publish", waybill.ErrClosed))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.PublishTimeout)
	defer cancel()
	if !t.borrowed {
		t.idlest().publish(ctx, n, msgs, results)
		return
	}
	// A write to the caller's connection may block for as long as the broker does not read. Then this call ends
	// with its context, and the stuck write goes on with copies.
	if m, ok := msgs.(*envelopeBatch); ok {
		msgs = m.clone()
	}
	mine, done := make(core.Results, n), make(chan struct{})
	go func() {
		defer close(done)
		t.pubs[0].publish(ctx, n, msgs, mine)
	}()
	select {
	case <-done:
		copy(results, mine)
		return
	case <-ctx.Done():
	}
	grace := time.NewTimer(stuckGrace) // it ends by itself unless it is stuck in a write
	defer grace.Stop()
	select {
	case <-done:
		copy(results, mine)
	case <-grace.C:
		fill(results, outage("publish", fmt.Errorf("no confirm in time; the result is unknown: %w", context.Cause(ctx))))
	}
}

// idlest returns the publisher with the fewest calls in progress.
func (t *Transport) idlest() *publisher {
	best := t.pubs[0]
	for _, p := range t.pubs[1:] {
		if p.calls.Load() < best.calls.Load() {
			best = p
		}
	}
	return best
}

// stuckGrace is how long a Publish on a caller's connection waits for its results after its context ended.
const stuckGrace = 200 * time.Millisecond

func fill(results core.Results, err error) {
	for i := range results {
		results[i] = err
	}
}

// envelopeBatch is a batch of envelopes for the exchange.
type envelopeBatch struct {
	exchange  string
	maxBody   int
	prefix    bool            // nothing is sent behind a failed message of its key
	broken    map[string]bool // the keys of those
	envelopes []waybill.Envelope
}

func (b *envelopeBatch) failed(i int) {
	if key := b.envelopes[i].Key; b.prefix && key != "" {
		if b.broken == nil {
			b.broken = map[string]bool{}
		}
		b.broken[key] = true
	}
}

func (b *envelopeBatch) fill(i int, now time.Time, table amqp.Table) (exchange, key string, p amqp.Publishing, err error) {
	e := &b.envelopes[i]
	if b.broken[e.Key] {
		return "", "", p, errBehind
	}
	if size := e.Size(); size > b.maxBody {
		return "", "", p, permanent("publish", waybill.ReasonTooLarge, fmt.Errorf("topic %q: the body has %d bytes, names and headers have %d; "+
			"Options.MaxBodyBytes allows %d in all: raise it within the broker's limit, or store the content elsewhere and send a reference",
			clip(e.Topic), len(e.Body), size-len(e.Body), b.maxBody))
	}
	p, err = encode(e, now, table)
	return b.exchange, e.Topic, p, err
}

func (b *envelopeBatch) clone() *envelopeBatch {
	c := &envelopeBatch{exchange: b.exchange, maxBody: b.maxBody, prefix: b.prefix, envelopes: slices.Clone(b.envelopes)}
	for i := range c.envelopes {
		e := b.envelopes[i].Clone()
		e.Body = bytes.Clone(b.envelopes[i].Body)
		c.envelopes[i] = e
	}
	return c
}
