package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

// NoTx stands for the transaction that an inbox of [NewAtLeastOnce] does not have.
type NoTx struct{}

// DefaultLease is the lease of [NewAtLeastOnce] for one run of a handler.
const DefaultLease = 5 * time.Minute

// finishTime bounds the call that ends a run. The handler's context may be over by then.
const finishTime = 5 * time.Second

// waitMost is the longest pause before it is asked again whether another run has ended.
const waitMost = time.Second

// NewAtLeastOnce returns an inbox without transactions, for effects that no transaction of a store can hold: a call of
// another service, a file, a database that has no inbox. It promises at least once, not exactly once: the mark is
// written after the effect, so a process that dies between the two has the effect again. A handler should pass on what
// identifies the message ([waybill.Envelope], Source and ID) as an idempotency key, if the other side takes one.
//
// What else an inbox does, it does: a message whose mark is there does not run again; of two deliveries at a time one
// runs, and the other waits; a failed handler leaves no mark. lease bounds one run; 0 means [DefaultLease]. A handler's
// context ends with it, and then another run may begin. Marks are kept for opts.Retention, negative = for ever.
func NewAtLeastOnce(store core.MarkStore, consumerName string, lease time.Duration, opts Options) (*Inbox[NoTx], error) {
	var p []string
	if check.Nil(store) {
		p = append(p, "store: is nil; give the marks of a store")
	}
	lease = cmp.Or(lease, DefaultLease)
	if lease < time.Second {
		p = append(p, fmt.Sprintf("lease: %s is less than 1s, too short for a handler; raise it, or leave it 0 for %s", lease, DefaultLease))
	}
	if len(p) > 0 {
		return nil, waybill.Invalid("waybill/inbox", append(p, opts.problems()...)...)
	}
	marks := &atLeastOnce{store: store, lease: lease, keep: max(opts.retention(), 0)}
	box, err := newInbox[NoTx](marks, consumerName, opts, true)
	if err != nil {
		return nil, err
	}
	return box, nil
}

// atLeastOnce is a core.Inbox without transactions.
type atLeastOnce struct {
	store       core.MarkStore
	lease, keep time.Duration // of one run; of a mark, 0 = for ever
}

// Unwrap returns the store of the marks, for its capabilities.
func (a *atLeastOnce) Unwrap() any { return a.store }

// Do runs fn unless key is done, and marks it afterwards:
//
//  1. BeginMark claims the key for this run, by a token, for a lease. While another run has it, claim asks again.
//  2. fn runs within the lease, counted from before the claim was sent.
//  3. FinishMark writes the mark. If it fails, the effect is there without its mark, and can come again.
//  4. If fn failed or panicked, ForgetMark ends the claim, so that the next run need not wait for the lease.
//
// Steps 3 and 4 have a time of their own, since the handler's context may be over.
func (a *atLeastOnce) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx NoTx) error) (core.InboxStatus, error) {
	token := waybill.NewID()
	begun, state, err := a.claim(ctx, key, token)
	switch {
	case err != nil:
		return core.InboxNone, err
	case state == core.InboxDuplicate, state == core.InboxConflict:
		return state, nil
	case state != core.InboxNew:
		return core.InboxNone, fmt.Errorf("waybill/inbox: the store returned status %s without an error; its BeginMark is broken", state)
	}
	forget := true
	defer func() {
		if forget { // fn failed, or panicked
			after, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
			defer cancel()
			_ = a.store.ForgetMark(after, key, token) // otherwise the lease ends it
		}
	}()
	limited, cancel := context.WithDeadline(ctx, begun.Add(a.lease))
	defer cancel()
	if err := fn(limited, NoTx{}); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("waybill/inbox: the handler ran longer than its lease, %s: %w", a.lease, err)
		}
		return core.InboxNone, err
	}
	forget = false
	after, stop := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer stop()
	if err := a.store.FinishMark(after, key, a.keep); err != nil {
		return core.InboxNone, fmt.Errorf("waybill/inbox: the handler had its effect, and the mark cannot be written, so it may have it again: %w", err)
	}
	return core.InboxNew, nil
}

// claim claims key. While another run has it, it waits. begun is no later than the beginning of the lease.
func (a *atLeastOnce) claim(ctx context.Context, key core.InboxKey, token string) (begun time.Time, state core.InboxStatus, err error) {
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, waitMost) {
		begun = time.Now()
		if state, err = a.store.BeginMark(ctx, key, token, a.lease); !errors.Is(err, waybill.ErrInFlight) {
			return begun, state, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return begun, core.InboxNone, &waybill.Error{Op: "waybill/inbox", Class: waybill.ClassOutage, Err: errors.Join(err, ctx.Err())}
		}
	}
}
