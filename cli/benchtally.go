package cli

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// tally counts each message of a bench: a delivery that its handler concluded or, without consumers, a confirm.
type tally struct {
	prefix string // of the ids; another run's messages do not count
	all    int    // messages
	timed  int    // from this one on their times are kept

	mu        sync.Mutex
	times     []uint32    // how often each one counted
	at        []time.Time // when the timed ones counted first
	distinct  int         // messages that counted
	counts    int         // all counts
	confirmed int
	want      int
	reached   chan struct{} // closed when want messages counted; nil = nobody waits
	calls     []time.Duration
	last      error
}

func newTally(prefix string, all, timed int) *tally {
	return &tally{prefix: prefix, all: all, timed: timed, times: make([]uint32, all), at: make([]time.Time, all-timed)}
}

// id is that of the i-th message.
func (t *tally) id(i int) string { return t.prefix + strconv.Itoa(i) }

// count counts one message.
func (t *tally) count(id string) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(id, now)
}

// add needs mu.
func (t *tally) add(id string, now time.Time) {
	digits, ours := strings.CutPrefix(id, t.prefix)
	i, err := strconv.Atoi(digits)
	if !ours || err != nil || i < 0 || i >= t.all {
		return
	}
	t.counts++
	if t.times[i]++; t.times[i] > 1 {
		return
	}
	if t.distinct++; i >= t.timed {
		t.at[i-t.timed] = now
	}
	if t.reached != nil && t.distinct >= t.want {
		close(t.reached)
		t.reached = nil
	}
}

// reach returns a channel that is closed when so many messages have counted.
func (t *tally) reach(want int) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	reached := make(chan struct{})
	if t.distinct >= want {
		close(reached)
		return reached
	}
	t.want, t.reached = want, reached
	return reached
}

// soFar returns messages that counted, all counts, and confirms.
func (t *tally) soFar() (distinct, counts, confirmed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.distinct, t.counts, t.confirmed
}

// since returns how long after the times of from the timed messages counted.
func (t *tally) since(from []time.Time) []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	took := make([]time.Duration, len(from))
	for i := range from {
		took[i] = max(t.at[i].Sub(from[i]), 0) // a handler can be done before the commit has returned
	}
	return took
}

// takeCalls returns how long the publish calls took since the last time.
func (t *tally) takeCalls() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls := t.calls
	t.calls = nil
	return calls
}

// failed notes an error, for the case that nothing goes on.
func (t *tally) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = err
}

// lastError is the latest error of a publish or a handler.
func (t *tally) lastError() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		return context.DeadlineExceeded
	}
	return t.last
}

// handler counts what h concluded, first time or not.
func (t *tally) handler(h waybill.Handler) waybill.Handler {
	handle := h.Handle
	h.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		status, err := handle(ctx, d)
		if err != nil {
			t.failed(err)
			return status, err
		}
		t.count(d.Envelope.ID)
		return status, nil
	}
	return h
}

// benchPublisher counts the confirmed messages, and times the calls.
type benchPublisher struct {
	to    core.Publisher // nil = nowhere: everything is confirmed at once
	tally *tally
	ends  bool // a confirmed message counts
}

// Unwrap lets the relay find the optional interfaces of the transport.
func (p *benchPublisher) Unwrap() any {
	if p.to == nil {
		return nil
	}
	return p.to
}

// Traits are those of the transport.
func (p *benchPublisher) Traits() core.PublisherTraits {
	if p.to != nil {
		return p.to.Traits()
	}
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true}
}

// Publish passes the messages on.
func (p *benchPublisher) Publish(ctx context.Context, envelopes []waybill.Envelope) core.Results {
	began := time.Now()
	results := make(core.Results, len(envelopes))
	if p.to != nil {
		results = p.to.Publish(ctx, envelopes)
	}
	now := time.Now()
	t := p.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls = append(t.calls, now.Sub(began))
	t.confirmed += len(envelopes) - results.Failed()
	if err := results.FirstErr(); err != nil {
		t.last = err
	}
	for i := range envelopes {
		if p.ends && results[i] == nil {
			t.add(envelopes[i].ID, now)
		}
	}
	return results
}
