package sharedtest

import (
	"context"
	"slices"
	"sync"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Publisher keeps the published messages, in the order of arrival. Its zero value confirms everything, and promises the
// order of keys with one message of a key in flight. It is safe for concurrent use.
type Publisher struct {
	// Promises replaces the promises, if not nil.
	Promises *core.PublisherTraits
	// Before, if not nil, runs before each batch. An error is the result of every message; none arrives then.
	Before func(ctx context.Context, batch []waybill.Envelope) error

	mu   sync.Mutex
	sent []waybill.Envelope
}

// Traits implements core.Publisher.
func (p *Publisher) Traits() core.PublisherTraits {
	if p.Promises != nil {
		return *p.Promises
	}
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, DetectsUnroutable: true}
}

// Publish implements core.Publisher.
func (p *Publisher) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	if p.Before != nil {
		if err := p.Before(ctx, batch); err != nil {
			return core.AllFailed(len(batch), err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, batch...)
	return make(core.Results, len(batch))
}

// Sent returns the published messages.
func (p *Publisher) Sent() []waybill.Envelope {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sent)
}

// Count returns how many messages were published.
func (p *Publisher) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent)
}
