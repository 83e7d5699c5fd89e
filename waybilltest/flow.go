package waybilltest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// maxRuns bounds the messages of one Drain: more means that handlers stage for ever.
const maxRuns = 10_000

// FlowStore is the outbox that a [Flow] drains.
type FlowStore interface {
	core.OutboxStore
	admin.Counter
	admin.Inspector
}

// Flow hands the committed messages of an outbox to handlers, step by step, on the test's goroutine. It is the part of
// an [Env] that does not depend on the store. [New] and package sqltest make it.
type Flow struct {
	tb       TB
	opts     Options
	store    FlowStore
	clock    time.Time
	skew     time.Duration // ahead of the clock, while timers are taken
	sessions core.Session
	handlers []waybill.Handler
	sent     []Sent
	draining bool
}

// Sent is one attempt to deliver a message that was staged and committed.
type Sent struct {
	Envelope waybill.Envelope
	Route    string
	// Attempt counts from 1. DueIn is how long it would have waited for its schedule or retry; 0 = at once.
	Attempt int
	DueIn   time.Duration
	// Handled reports whether there was a handler for it; Result is what became of it then.
	Handled bool
	Result  Result
}

// NewFlow returns the flow of the store that open makes. Its messages have the given source. The store must take its
// time from now, which can go ahead of [Flow.Now] and come back. A store with the clock of a server, such as Postgres,
// cannot.
func NewFlow(tb TB, opts Options, open func(source string, now func() time.Time) (FlowStore, error), handlers ...waybill.Handler) *Flow {
	tb.Helper()
	if opts.Source == "" {
		opts.Source = "/test"
	}
	if opts.Start.IsZero() {
		opts.Start = time.Now()
	}
	f := &Flow{tb: tb, opts: opts, clock: opts.Start.UTC().Truncate(time.Microsecond)}
	if opts.Retry != nil {
		if p := opts.Retry.Validate("Retry"); len(p) > 0 {
			tb.Fatalf("waybilltest: %v", waybill.Invalid("options", p...))
		}
	}
	store, err := open(opts.Source, func() time.Time { return f.clock.Add(f.skew) })
	if err != nil {
		tb.Fatalf("waybilltest: %v", err)
	}
	f.store = store
	f.Handle(handlers...)
	return f
}

// Handle registers handlers. A message reaches the one whose name is its type, or else its topic, or else
// waybill.AnyMessage.
func (f *Flow) Handle(handlers ...waybill.Handler) { f.handlers = append(f.handlers, handlers...) }

// Now returns the time of the clock.
func (f *Flow) Now() time.Time { return f.clock }

// Advance moves the clock forward and handles what is due then.
func (f *Flow) Advance(d time.Duration) error {
	f.clock = f.clock.Add(d)
	return f.Drain()
}

// Drain handles everything that was committed, until no message is left, or only messages that wait for Advance. Do
// calls it. It returns the errors of messages that were parked; an outage ends it at once, and the message stays for
// the next Drain.
func (f *Flow) Drain() (err error) {
	if f.draining {
		return nil // called by a handler: the one outside goes on
	}
	f.draining = true
	m := f.join()
	defer func() {
		f.draining = false
		err = errors.Join(err, m.leave())
	}()
	var errs []error
	for range maxRuns {
		rec, dueIn, err := m.next()
		if err != nil || rec == nil {
			return errors.Join(append(errs, err)...)
		}
		again, err := m.run(rec, dueIn)
		errs = append(errs, err)
		if !again {
			return errors.Join(errs...)
		}
	}
	return errors.Join(append(errs, fmt.Errorf("waybilltest: %d messages in one Drain: do handlers stage for ever?", maxRuns))...)
}

// run hands rec to its handler and settles it. It reports whether to go on: not when something is down.
func (m *member) run(rec *core.Record, dueIn time.Duration) (bool, error) {
	d := &waybill.Delivery{Envelope: rec.Envelope, Queue: Queue, Attempt: rec.Attempts + 1, Redeliveries: rec.Crashes, Err: rec.Err}
	s := Sent{Envelope: rec.Envelope.Clone(), Route: rec.Route, Attempt: d.Attempt, DueIn: dueIn}
	if d.Err == nil && d.Envelope.Expired(m.clock.Add(dueIn)) {
		d.Err = &waybill.Error{Op: "waybilltest", Class: waybill.ClassPermanent, Reason: waybill.ReasonExpired, Err: errors.New("expired")}
	}
	h, ok := find(m.handlers, &d.Envelope)
	out := core.Published(rec)
	if s.Handled = ok || d.Err != nil; s.Handled {
		s.Result = Deliver(m.tb.Context(), h, d)
		out = m.outcome(rec, &s.Result)
	}
	if !s.Handled && !m.opts.AllowUnhandled {
		m.tb.Errorf("waybilltest: no handler is for type %q or topic %q: give one to New or Flow.Handle, or set Options.AllowUnhandled", d.Envelope.Type, d.Envelope.Topic)
	}
	m.sent = append(m.sent, s)
	if err := m.store.Settle(m.tb.Context(), m.self.Session, []core.Outcome{out}).FirstErr(); err != nil {
		return false, err
	}
	down := s.Result.Verdict == core.VerdictRelease
	if down || s.Result.Verdict == core.VerdictReject {
		return !down, fmt.Errorf("waybilltest: topic %s, message %s, attempt %d: %w", d.Envelope.Topic, d.Envelope.ID, d.Attempt, s.Result.Err)
	}
	return true, nil
}

// outcome asks the retry policy, and says in r if it gave up.
func (f *Flow) outcome(rec *core.Record, r *Result) core.Outcome {
	switch r.Verdict {
	case core.VerdictRetry:
		policy := f.opts.Retry
		if policy == nil {
			policy = waybill.RetryDelays()
		}
		delay, again, err := policy.Next(rec.Attempts+1, r.Err)
		if again && err == nil {
			if failure, ok := errors.AsType[*waybill.Error](r.Err); ok && failure.After > 0 {
				delay = failure.After
			}
			return core.Retry(rec, r.Err, delay)
		}
		r.Verdict, r.Reason = core.VerdictReject, waybill.ReasonAttempts
	case core.VerdictRelease:
		return core.Release(rec, 0, false)
	case core.VerdictNone, core.VerdictDone:
		return core.Published(rec)
	case core.VerdictReject:
	}
	return core.Abandon(rec, r.Reason, r.Err)
}

// Deliver hands a message to its handler as if it had come from a broker: a raw, foreign or poison one. It fails the
// test if there is no handler for it.
func (f *Flow) Deliver(m waybill.Envelope) Result {
	f.tb.Helper()
	return f.deliver(&waybill.Delivery{Envelope: m, Queue: Queue, Attempt: 1})
}

// Redeliver hands a message that was sent before to its handler once more, as after a crash. With an inbox its status
// is waybill.HandlerDuplicate. It fails the test if no message with this id was sent.
func (f *Flow) Redeliver(id string) Result {
	f.tb.Helper()
	for _, s := range f.sent {
		if s.Envelope.ID == id {
			return f.deliver(&waybill.Delivery{Envelope: s.Envelope.Clone(), Queue: Queue, Attempt: s.Attempt, Redeliveries: 1})
		}
	}
	f.tb.Fatalf("waybilltest: redeliver: no message with id %q was sent", id)
	return Result{}
}

func (f *Flow) deliver(d *waybill.Delivery) Result {
	f.tb.Helper()
	h, ok := find(f.handlers, &d.Envelope)
	if !ok {
		f.tb.Fatalf("waybilltest: deliver: no handler for type %q or topic %q", d.Envelope.Type, d.Envelope.Topic)
	}
	r := Deliver(f.tb.Context(), h, d)
	if err := f.Drain(); err != nil {
		f.tb.Errorf("waybilltest: what the handler of %s staged: %v", d.Envelope.Topic, err)
	}
	return r
}

// Sent returns all attempts so far, in order; of the given topics only, if any.
func (f *Flow) Sent(topics ...string) []Sent {
	var out []Sent
	for _, s := range f.sent {
		if len(topics) == 0 || slices.Contains(topics, s.Envelope.Topic) {
			out = append(out, s)
		}
	}
	return out
}

func (f *Flow) test() TB { return f.tb }

// messages returns the sent messages, first attempts only.
func (f *Flow) messages() []waybill.Envelope {
	var out []waybill.Envelope
	for _, s := range f.sent {
		if s.Attempt == 1 {
			out = append(out, s.Envelope)
		}
	}
	return out
}
