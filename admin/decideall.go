package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

const (
	// DefaultDecideWait is how long DecideAll waits for owners that carry nothing out.
	DefaultDecideWait = 30 * time.Second
	// MaxPending bounds the decisions that DecideAll has told owners about and that are not carried out.
	MaxPending = 10_000

	decideLook = 50 * time.Millisecond
)

// TerminateRequest asks to end all records that a filter selects and that have not ended.
type TerminateRequest struct {
	// Filter selects the records. It must not be empty unless All. Its States are pending, failed or processing;
	// none means all three.
	Filter Filter
	// All confirms that an empty filter is intended.
	All bool
	// Reason is waybill.ReasonSkipped, or waybill.ReasonSetAside for records that are to be redriven some day.
	Reason waybill.Reason
	// Page bounds one step, and says where to begin. Its default limit is [MaxPageLimit].
	Page PageRequest
	// DryRun counts the matching records, and changes nothing.
	DryRun bool
}

// TerminateOptions says what DecideAll tells, and how long it waits.
type TerminateOptions struct {
	// Wait is how long owners may carry out nothing until DecideAll gives up; default [DefaultDecideWait], negative
	// = it asks once. A relay acts within two of its heartbeats, unless it is sending the record.
	Wait time.Duration
	// Progress, if not nil, is called after each step and each look, with the sum so far.
	Progress func(sum TerminateResult)
	// Result, if not nil, is called for each record whose result is known, and in the end for those whose decision
	// is still pending. Both functions are called by the goroutine that called DecideAll.
	Result func(d Decision)
}

// TerminateResult is the sum of a DecideAll. In a dry run it has Matched and Next only.
type TerminateResult struct {
	// Matched is how many records matched. The others are how many of them had which result.
	Matched, Ended, Otherwise, Locked, Pending int
	// Next is where to go on after an error, as PageRequest.After; 0 = the end was reached.
	Next int64
}

// DecideAll ends all records that req selects, step by step, and waits until the owners of the records have carried
// that out. Each step is a transaction of its own. So what was decided stays so when ctx ends, or a step fails. It
// never has more than [MaxPending] decisions pending, and waits for owners before it goes on. If they carry nothing out
// for opts.Wait, it returns an error that matches waybill.ErrInFlight. A decision that is pending then stands.
func DecideAll(ctx context.Context, store Terminator, req TerminateRequest, opts TerminateOptions) (TerminateResult, error) {
	e := ender{store: store, req: req, opts: opts}
	e.opts.Wait = cmp.Or(e.opts.Wait, DefaultDecideWait)
	if err := e.check(); err != nil {
		return TerminateResult{}, err
	}
	err := e.run(ctx)
	for _, d := range e.pending {
		e.say(d)
	}
	return e.sum, err
}

// ender is one DecideAll.
type ender struct {
	store   Terminator
	req     TerminateRequest
	opts    TerminateOptions
	sum     TerminateResult
	pending []Decision
}

// check sets defaults, or returns an [*waybill.InvalidError] that lists every problem.
func (e *ender) check() error {
	var p []string
	f, page := &e.req.Filter, &e.req.Page
	if f.IsZero() && !e.req.All {
		p = append(p, "Filter: is empty, which selects every record: set All if that is meant, or name tenants, topics, keys or ids")
	}
	if len(f.Reasons) > 0 {
		p = append(p, "Filter.Reasons: select records that have ended; leave them out")
	}
	for _, s := range f.States {
		if s.Terminal() {
			p = append(p, fmt.Sprintf("Filter.States: %s records have ended", s))
		}
	}
	if len(f.States) == 0 {
		f.States = []core.State{core.StatePending, core.StateProcessing, core.StateFailed}
	}
	page.Limit = cmp.Or(page.Limit, MaxPageLimit)
	e.sum.Next = page.After
	return waybill.Invalid("waybill: decide all", checkReason(page.check(f.check(p)), e.req.Reason)...)
}

func (e *ender) run(ctx context.Context) error {
	for {
		found, err := e.store.List(ctx, e.req.Filter, e.req.Page)
		if err != nil {
			return err
		}
		e.sum.Matched += len(found.Records)
		if !e.req.DryRun {
			if err := e.decide(ctx, found.Records); err != nil {
				return err
			}
		}
		e.sum.Next, e.req.Page.After = found.Next, found.Next
		e.progress()
		most := 0
		if found.Next != 0 {
			most = MaxPending - e.req.Page.Limit
		}
		if err := e.await(ctx, most); err != nil || found.Next == 0 {
			return err
		}
	}
}

// decide decides about records.
func (e *ender) decide(ctx context.Context, found []Stored) error {
	asked := make([]Decision, len(found))
	for i := range found {
		asked[i] = Decision{Route: found[i].Route, Seq: found[i].Seq, ID: found[i].Envelope.ID}
	}
	pending, err := e.ask(ctx, asked)
	if err != nil {
		e.sum.Matched -= len(found) // it goes on before them
		return err
	}
	e.pending = append(e.pending, pending...)
	e.sum.Pending = len(e.pending)
	return nil
}

// ask has the store decide, counts the results that are known, and returns the decisions that are pending.
func (e *ender) ask(ctx context.Context, asked []Decision) (pending []Decision, err error) {
	if len(asked) == 0 {
		return nil, nil
	}
	all, err := e.store.DecideRecords(ctx, DecideRequest{Reason: e.req.Reason, Decisions: asked})
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		switch d.Result {
		case DecisionPending:
			pending = append(pending, d)
			continue
		case DecisionCarriedOut:
			e.sum.Ended++
		case DecisionLocked:
			e.sum.Locked++
		case DecisionSuperseded:
			e.sum.Otherwise++
		}
		e.say(d)
	}
	return pending, nil
}

// await waits until at most so many decisions are pending.
func (e *ender) await(ctx context.Context, most int) error {
	if len(e.pending) <= most {
		return nil
	}
	look := time.NewTicker(decideLook)
	defer look.Stop()
	for since := time.Now(); ; {
		before := len(e.pending)
		if err := e.look(ctx); err != nil {
			return err
		}
		if len(e.pending) != before {
			since = time.Now()
			e.progress()
		}
		switch {
		case len(e.pending) <= most:
			return nil
		case time.Since(since) > e.opts.Wait:
			return &waybill.Error{Op: "waybill: decide all", Class: waybill.ClassRejected, Err: fmt.Errorf(
				"%d decisions are stored, such as about message %q of route %q, and their relays have carried out none for %s: "+
					"they stand; look at the health of the relays, or start one if none runs (%w)",
				len(e.pending), e.pending[0].ID, e.pending[0].Route, e.opts.Wait, waybill.ErrInFlight)}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waybill: decide all: %w", ctx.Err())
		case <-look.C:
		}
	}
}

// look asks what has become of those of the pending ones that were not asked about for the longest time.
func (e *ender) look(ctx context.Context) error {
	n := min(len(e.pending), MaxPageLimit)
	pending, err := e.ask(ctx, e.pending[:n])
	if err != nil {
		return err
	}
	e.pending = append(slices.Clone(e.pending[n:]), pending...)
	e.sum.Pending = len(e.pending)
	return nil
}

func (e *ender) say(d Decision) {
	if e.opts.Result != nil {
		e.opts.Result(d)
	}
}

func (e *ender) progress() {
	if e.opts.Progress != nil {
		e.opts.Progress(e.sum)
	}
}
