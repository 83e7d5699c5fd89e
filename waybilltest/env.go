package waybilltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// TB is what this package needs of a *testing.T, *testing.B or *testing.F.
type TB interface {
	Helper()
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// maxRuns bounds the messages of one Drain: more means that handlers stage for ever.
const maxRuns = 10_000

// Options configures an [Env]. The zero value is usable.
type Options struct {
	// Source is the CloudEvents source of staged messages; default "/test".
	Source string
	// Start is what the clock says; default now. It stands still until Env.Advance.
	Start time.Time
	// Retry is the retry policy. Default: none, a handler's first error parks the message and reaches the test.
	// With a policy the retries run at once, and only a message that is parked in the end reaches the test.
	Retry *waybill.Backoff
	// KeepScheduled lets scheduled messages and retries wait for Env.Advance, so that a later transaction can
	// cancel or replace them.
	KeepScheduled bool
	// AllowUnhandled lets messages pass that no handler is for, such as those for other services: they count as
	// sent. Default: such a message fails the test.
	AllowUnhandled bool
}

// Env is an application's surroundings in memory. Make it with [New].
type Env struct {
	// Store is the outbox, the inbox and a table of strings: a waybill.Stager, waybill.Canceller and core.Inbox of
	// *memory.Tx. After a Commit of your own call Env.Drain.
	Store *memory.Store

	tb       TB
	opts     Options
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

// New returns an empty environment whose messages are handled by handlers, if any. More can be given to [Env.Handle].
func New(tb TB, opts Options, handlers ...waybill.Handler) *Env {
	tb.Helper()
	if opts.Source == "" {
		opts.Source = "/test"
	}
	if opts.Start.IsZero() {
		opts.Start = time.Now()
	}
	e := &Env{tb: tb, opts: opts, clock: opts.Start.UTC().Truncate(time.Microsecond)}
	if opts.Retry != nil {
		if p := opts.Retry.Validate("Retry"); len(p) > 0 {
			tb.Fatalf("waybilltest: %v", waybill.Invalid("options", p...))
		}
	}
	store, err := memory.New(memory.Options{Source: opts.Source, Now: func() time.Time { return e.clock.Add(e.skew) }})
	if err != nil {
		tb.Fatalf("waybilltest: %v", err)
	}
	e.Store = store
	e.Handle(handlers...)
	return e
}

// Handle registers handlers. A message reaches the one whose name is its type, or else its topic, or else
// waybill.AnyMessage.
func (e *Env) Handle(handlers ...waybill.Handler) { e.handlers = append(e.handlers, handlers...) }

// Now returns the time of the clock.
func (e *Env) Now() time.Time { return e.clock }

// Do runs fn in a transaction, commits it, and handles the staged messages, and those that their handlers stage in
// turn. It returns fn's error (then nothing was committed), the commit's, or those of handlers.
func (e *Env) Do(fn func(ctx context.Context, tx *memory.Tx) error) error {
	tx := e.Store.Begin()
	defer tx.Rollback()
	if err := fn(e.tb.Context(), tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	return e.Drain()
}

// Stage stages msgs in a transaction of their own, handles them, and fails the test if anything goes wrong.
func (e *Env) Stage(msgs ...waybill.Message) (staged []waybill.Staged) {
	e.tb.Helper()
	err := e.Do(func(ctx context.Context, tx *memory.Tx) (err error) {
		staged, err = e.Store.Stage(ctx, tx, msgs...)
		return err
	})
	if err != nil {
		e.tb.Fatalf("waybilltest: stage: %v", err)
	}
	return staged
}

// Cancel cancels a message in a transaction of its own and fails the test if that goes wrong. Only a waiting message
// can be cancelled: see Options.KeepScheduled, or cancel in the transaction that staged.
func (e *Env) Cancel(key waybill.CancelKey) waybill.CancelStatus {
	e.tb.Helper()
	status := waybill.CancelNotFound
	err := e.Do(func(ctx context.Context, tx *memory.Tx) error {
		c, ok := core.As[waybill.Canceller[*memory.Tx]](e.Store)
		if !ok {
			return waybill.ErrUnsupported
		}
		all, err := c.Cancel(ctx, tx, key)
		if err == nil {
			status = all[0]
		}
		return err
	})
	if err != nil {
		e.tb.Fatalf("waybilltest: cancel: %v", err)
	}
	return status
}

// Advance moves the clock forward and handles what is due then.
func (e *Env) Advance(d time.Duration) error {
	e.clock = e.clock.Add(d)
	return e.Drain()
}

// Drain handles everything that was committed, until no message is left, or only messages that wait for Advance. Do
// calls it. It returns the errors of messages that were parked; an outage ends it at once, and the message stays for
// the next Drain.
func (e *Env) Drain() (err error) {
	if e.draining {
		return nil // called by a handler: the one outside goes on
	}
	e.draining = true
	m := e.join()
	defer func() {
		e.draining = false
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
		m.tb.Errorf("waybilltest: no handler is for type %q or topic %q: give one to New or Env.Handle, or set Options.AllowUnhandled", d.Envelope.Type, d.Envelope.Topic)
	}
	m.sent = append(m.sent, s)
	if err := m.Store.Settle(m.tb.Context(), m.self.Session, []core.Outcome{out}).FirstErr(); err != nil {
		return false, err
	}
	down := s.Result.Verdict == core.VerdictRelease
	if down || s.Result.Verdict == core.VerdictReject {
		return !down, fmt.Errorf("waybilltest: topic %s, message %s, attempt %d: %w", d.Envelope.Topic, d.Envelope.ID, d.Attempt, s.Result.Err)
	}
	return true, nil
}

// outcome asks the retry policy, and says in r if it gave up.
func (e *Env) outcome(rec *core.Record, r *Result) core.Outcome {
	switch r.Verdict {
	case core.VerdictRetry:
		policy := e.opts.Retry
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
func (e *Env) Deliver(m waybill.Envelope) Result {
	e.tb.Helper()
	return e.deliver(&waybill.Delivery{Envelope: m, Queue: Queue, Attempt: 1})
}

// Redeliver hands a message that was sent before to its handler once more, as after a crash. With an inbox its status
// is waybill.HandlerDuplicate. It fails the test if no message with this id was sent.
func (e *Env) Redeliver(id string) Result {
	e.tb.Helper()
	for _, s := range e.sent {
		if s.Envelope.ID == id {
			return e.deliver(&waybill.Delivery{Envelope: s.Envelope.Clone(), Queue: Queue, Attempt: s.Attempt, Redeliveries: 1})
		}
	}
	e.tb.Fatalf("waybilltest: redeliver: no message with id %q was sent", id)
	return Result{}
}

func (e *Env) deliver(d *waybill.Delivery) Result {
	e.tb.Helper()
	h, ok := find(e.handlers, &d.Envelope)
	if !ok {
		e.tb.Fatalf("waybilltest: deliver: no handler for type %q or topic %q", d.Envelope.Type, d.Envelope.Topic)
	}
	r := Deliver(e.tb.Context(), h, d)
	if err := e.Drain(); err != nil {
		e.tb.Errorf("waybilltest: what the handler of %s staged: %v", d.Envelope.Topic, err)
	}
	return r
}

// Sent returns all attempts so far, in order; of the given topics only, if any.
func (e *Env) Sent(topics ...string) []Sent {
	var out []Sent
	for _, s := range e.sent {
		if len(topics) == 0 || slices.Contains(topics, s.Envelope.Topic) {
			out = append(out, s)
		}
	}
	return out
}

// Waiting returns the messages that were committed and not sent: scheduled ones and retries, with KeepScheduled. Due
// says when.
func (e *Env) Waiting() []memory.StoredRecord {
	return slices.DeleteFunc(e.Store.Records(), func(r memory.StoredRecord) bool { return r.State.Terminal() })
}

// Parked returns the messages that were given up, with Reason and LastError.
func (e *Env) Parked() []memory.StoredRecord {
	return slices.DeleteFunc(e.Store.Records(), func(r memory.StoredRecord) bool { return r.State != core.StateAbandoned })
}

func (e *Env) test() TB { return e.tb }

// messages returns the sent messages, first attempts only.
func (e *Env) messages() []waybill.Envelope {
	var out []waybill.Envelope
	for _, s := range e.sent {
		if s.Attempt == 1 {
			out = append(out, s.Envelope)
		}
	}
	return out
}
