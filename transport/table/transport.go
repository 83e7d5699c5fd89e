package table

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/errtext"
	"github.com/waybill-go/waybill/internal/obs"
)

var (
	_ core.Subscriber   = (*Transport)(nil)
	_ core.Receiver     = (*receiver)(nil)
	_ core.LeaseWatcher = (*receiver)(nil)
)

// maxCalls bounds the calls to the store that are made at a time, besides the one that waits.
const maxCalls = 2

// Transport hands out the records of a store. Make it with [New].
//
// It is an [admin.ParkedQueue] if the store is an admin.Inspector; to replay and to purge, the store must be an
// admin.Redriver and an admin.Purger, too. Up to 20,000 messages are in the order in which they were parked. Of more,
// the 20,000 that were staged first come first, and so on; some that are parked while a replay runs can be among those
// that it replays. A message whose dedupe key a waiting message has stays parked: cancel that one first. Messages of
// its key that came after a parked one may have been handled before it.
type Transport struct {
	parkedQueue

	store  core.OutboxStore
	waiter core.Waiter // nil if the store is none
	opts   Options
	log    *obs.Logger

	calls   chan struct{} // capacity maxCalls: held during a call to the store
	checks  chan struct{} // capacity 1: held during the check at start
	checked bool          // guarded by checks

	mu        sync.Mutex      // guards the fields below, and all receivers
	base      context.Context //nolint:containedctx // the values of the first Subscribe's context, without its end
	closed    bool
	receivers []*receiver
	stats     Stats
	upkeep    *upkeeper // nil without receivers
	settles   settles   // those that wait for a place in calls
	presence  presence

	listening chan struct{}      // closed when the wait in progress ends; nil = none
	hangUp    context.CancelFunc // ends the wait in progress
	waitFails int                // waits in a row that failed
	waitAt    time.Time          // no wait before then
}

// Stats counts events since [New].
type Stats struct {
	// Holds and Settles are calls to the store that took records, or said what became of them; HandedOut the
	// records that were handed out.
	Holds, Settles, HandedOut int64
	// LostAtSettle, LostAtRetry and LostAtRenew count deliveries found lost, by phase: when settling one that was
	// handled, released or parked; when asking for its retry; when the process learnt that it had been taken for
	// dead.
	LostAtSettle, LostAtRetry, LostAtRenew int64
}

// New returns a transport over store, or an error that lists all problems of opts.
func New(store core.OutboxStore, opts Options) (*Transport, error) {
	if check.Nil(store) {
		return nil, waybill.Invalid("waybill/table", "store: is nil; give an outbox store")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts.Owner = cmp.Or(opts.Owner, DefaultOwner)
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	opts.CleanInterval = cmp.Or(opts.CleanInterval, DefaultCleanInterval)
	waiter, wakes := core.As[core.Waiter](store)
	if !wakes && opts.PollMin == 0 && opts.PollMax == 0 {
		opts.PollMin, opts.PollMax = UnwokenPollMin, UnwokenPollMax
	}
	if _, shows := core.As[core.Presence](store); !shows && opts.Lease == 0 {
		opts.Lease = UnseenLease
	}
	t := &Transport{store: store, waiter: waiter, opts: opts, log: obs.NewLogger(opts.Logger), calls: make(chan struct{}, maxCalls), checks: make(chan struct{}, 1)}
	t.parkedQueue = t.walks()
	t.settles.store, _ = core.As[GroupSettler](store)
	return t, nil
}

// SubscriberTraits declares what receivers promise. KeyOrder and SingleActive hold where every queue has OrderPerKey.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	perKey := t.opts.Order == waybill.OrderPerKey
	for _, q := range t.opts.Queues {
		perKey = perKey && q.Order == waybill.OrderPerKey
	}
	return core.SubscriberTraits{KeyOrder: perKey, SingleActive: perKey, DelaysRetries: true, Parks: true, CountsRedeliveries: true}
}

// Stats returns a copy of the counters.
func (t *Transport) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

// Subscribe opens a receiver of the route sub.Queue. It declares nothing: a route exists as soon as something is
// staged on it. The first call asks the store, if it is a core.Checker, whether it can work at all.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	q := t.opts.queue(sub.Queue)
	if err := waybill.Invalid(fmt.Sprintf("waybill/table: subscription of queue %q", sub.Queue), subscriptionProblems(&sub, &q)...); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, &waybill.Error{Op: "waybill/table: subscribe", Class: waybill.ClassOutage, Err: err}
	}
	if err := t.checkStore(ctx); err != nil {
		return nil, err
	}
	r := newReceiver(ctx, t, &sub, q)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		r.cancel()
		return nil, errClosed("subscribe")
	}
	if t.base == nil {
		t.base = context.WithoutCancel(ctx)
	}
	t.receivers = append(t.receivers, r)
	r.d.SetPresence(t.presence.token)
	r.closing.unwatch = context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(r.base, closeLimit)
		defer cancel()
		_ = r.Close(limit)
	})
	t.startUpkeep()
	return r, nil
}

func subscriptionProblems(sub *core.Subscription, q *QueueOptions) []string {
	var p []string
	if sub.Queue == "" {
		p = append(p, "Queue: is empty; name the route that messages are staged on")
	} else if s := check.Name(sub.Queue); s != "" {
		p = append(p, "Queue: "+s)
	}
	for i, b := range sub.Bindings {
		if strings.ContainsAny(b, "*#") {
			p = append(p, fmt.Sprintf("Bindings[%d]: %q holds a wildcard; a table queue gets what is staged on its route: leave it out", i, b))
		}
	}
	if sub.Prefetch < 0 || sub.Concurrency < 0 {
		p = append(p, "Prefetch, Concurrency: must not be negative; leave them 0 for the defaults")
	}
	if sub.InOrder && q.Order != waybill.OrderPerKey {
		p = append(p, fmt.Sprintf("InOrder: needs Order OrderPerKey for the queue, not %s", q.Order))
	}
	return p
}

// checkStore asks the store until it has said yes once. Subscriptions that open at the same time ask one after the
// other.
func (t *Transport) checkStore(ctx context.Context) error {
	c, ok := core.As[core.Checker](t.store)
	if !ok {
		return nil
	}
	select {
	case t.checks <- struct{}{}:
		defer func() { <-t.checks }()
	case <-ctx.Done():
		return &waybill.Error{Op: "waybill/table: subscribe", Class: waybill.ClassOutage, Err: ctx.Err()}
	}
	if t.checked {
		return nil
	}
	if err := c.Check(ctx); err != nil {
		return errtext.Within("waybill/table: subscribe", err)
	}
	t.checked = true
	return nil
}

// Close closes all receivers. The store stays open. It is idempotent.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	all := slices.Clone(t.receivers)
	t.mu.Unlock()
	var errs []error
	for _, r := range all {
		errs = append(errs, r.Close(ctx))
	}
	return errors.Join(errs...)
}

func errClosed(op string) error {
	return &waybill.Error{Op: "waybill/table: " + op, Class: waybill.ClassOutage, Err: waybill.ErrClosed}
}
