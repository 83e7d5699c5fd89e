package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sleep"
)

const (
	short   = 300 * time.Millisecond // delays that a check waits for
	far     = time.Hour              // delays that a check does not wait for
	pause   = 5 * time.Millisecond   // between looks
	forever = math.MaxInt64          // the end of a range
)

var errNo = errors.New("the broker said no")

// kit is what a check works with. Its methods give up the check when something fails.
type kit struct {
	ctx    context.Context //nolint:containedctx // a kit lives as long as one check
	h      Harness
	store  core.OutboxStore
	second core.OutboxStore // on the same data, or the same
	traits core.StoreTraits
	route  string // the check's own

	mu      sync.Mutex
	open    []Tx
	members []*member
	left    sync.WaitGroup // calls that did not come back in time
}

func newKit(ctx context.Context, h Harness) *kit {
	s := h.Store()
	return &kit{ctx: ctx, h: h, store: s, traits: s.Traits(), route: "r-" + waybill.NewID()}
}

func (k *kit) fail(format string, a ...any) { suitetest.Failf(format, a...) }

// failIf is fail if the condition holds.
func (k *kit) failIf(is bool, format string, a ...any) {
	if is {
		suitetest.Failf(format, a...)
	}
}

func (k *kit) must(what string, err error) {
	k.failIf(err != nil, "%s: %w", what, err)
}

// undeclared ends the check since the store or the harness does not declare what.
func (k *kit) undeclared(what string) { k.fail("%w: %s", ErrNotDeclared, what) }

// needs returns the T of a harness, a transaction or a store, and ends the check if it has none.
func needs[T any](k *kit, of any, what string) T {
	c, ok := core.As[T](of)
	if !ok {
		k.undeclared(what)
	}
	return c
}

// mustFence ends the check if the store does not fence sessions.
func (k *kit) mustFence() {
	if !k.traits.SessionFence {
		k.undeclared("SessionFence")
	}
}

func (k *kit) close() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), patience.For(suitetest.Patience))
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, tx := range k.open {
		_ = tx.Rollback(ctx)
	}
	k.settleDown()
	for _, m := range k.members {
		_, _ = m.store.Heartbeat(ctx, core.HeartbeatRequest{Self: m.self, Leave: true})
	}
}

// settleDown waits for calls that did not come back in time. No lock is held any more, so that they should end.
func (k *kit) settleDown() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.left.Wait()
	}()
	_, _ = suitetest.Come(done)
}

// other returns a second store on the same data, or the first one if there is none.
func (k *kit) other() core.OutboxStore {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.second == nil {
		k.second = k.store
		if r, ok := core.As[Reopener](k.h); ok {
			s, err := r.Reopen(k.ctx)
			k.must("open a second store", err)
			k.second = s
		}
	}
	return k.second
}

// soon runs fn, which must not wait for a transaction that is open.
func (k *kit) soon(what string, fn func()) {
	done := make(chan error, 1)
	k.left.Go(func() { done <- suitetest.Guard(fn) })
	switch err, ended := suitetest.Come(done); {
	case !ended:
		k.fail("%s waited %s for a lock that a transaction of the application holds", what, suitetest.Patience)
	case err != nil:
		suitetest.Raise(err)
	}
}

func (k *kit) now() time.Time {
	if c, ok := core.As[Clock](k.h); ok {
		return c.Now()
	}
	return time.Now()
}

// sleep waits for d by the store's clock.
func (k *kit) sleep(d time.Duration) {
	if c, ok := core.As[Clock](k.h); ok {
		k.must("sleep", c.Sleep(k.ctx, d))
		return
	}
	k.must("the check ran out of time", sleep.For(k.ctx, d))
}

// until asks fn again and again until it says yes, less and less often.
func (k *kit) until(what string, fn func() bool) {
	limit := patience.For(suitetest.Patience)
	deadline := k.now().Add(limit)
	for rest := pause; !fn(); rest = min(rest*3/2, limit/40) {
		k.failIf(k.now().After(deadline), "waited %s in vain until %s", suitetest.Patience, what)
		k.sleep(rest)
	}
}

// slack is how exact the store's times must be.
func (k *kit) slack() time.Duration {
	d := 10 * time.Millisecond
	if r, ok := core.As[Resolution](k.h); ok {
		d = max(d, r.Resolution())
	}
	return d
}

func (k *kit) single() bool {
	s, ok := core.As[SingleWriter](k.h)
	return ok && s.SingleWriter()
}

// option changes a row.
type option func(r *core.StagedRow)

func key(s string) option           { return func(r *core.StagedRow) { r.Envelope.Key = s } }
func id(s string) option            { return func(r *core.StagedRow) { r.Envelope.ID = s } }
func delay(d time.Duration) option  { return func(r *core.StagedRow) { r.Delay = d } }
func body(n int) option             { return func(r *core.StagedRow) { r.Envelope.Body = make([]byte, n) } }
func dedupe(s string) option        { return func(r *core.StagedRow) { r.DedupeKey = s } }
func cancellable(r *core.StagedRow) { r.Cancellable = true }
func expires(at time.Time) option {
	return func(r *core.StagedRow) { r.Envelope.Expires = at.UTC().Truncate(time.Microsecond) }
}
func onRoute(route string) option { return func(r *core.StagedRow) { r.Route = route } }
func rowIDs(rows []core.StagedRow) []string {
	return suitetest.Each(rows, func(r *core.StagedRow) string { return r.Envelope.ID })
}

// row returns a row with an id of its own on the check's route.
func (k *kit) row(opts ...option) core.StagedRow {
	r := core.StagedRow{Route: k.route, Envelope: waybill.Envelope{
		ID: waybill.NewID(), Topic: "outboxtest.topic", Type: "outboxtest.type", Source: "/outboxtest", ContentType: "text/plain",
		Time: time.Now().UTC().Truncate(time.Microsecond), Body: []byte("body"),
	}}
	for _, o := range opts {
		o(&r)
	}
	return r
}

func (k *kit) rows(n int, opts ...option) []core.StagedRow {
	out := make([]core.StagedRow, n)
	for i := range out {
		out[i] = k.row(opts...)
	}
	return out
}

func (k *kit) begin() Tx {
	tx, err := k.h.Begin(k.ctx)
	k.must("begin", err)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = append(k.open, tx)
	return tx
}

func (k *kit) stageIn(tx Tx, rows ...core.StagedRow) { k.must("stage", tx.Stage(k.ctx, rows...)) }

func (k *kit) commit(tx Tx) { k.must("commit", tx.Commit(k.ctx)) }

func (k *kit) rollback(tx Tx) { k.must("roll back", tx.Rollback(k.ctx)) }

// stage stages rows in a transaction of their own and returns their ids.
func (k *kit) stage(rows ...core.StagedRow) []string {
	tx := k.begin()
	k.stageIn(tx, rows...)
	k.commit(tx)
	return rowIDs(rows)
}

// lock locks records by a transaction of the application and returns the function that ends it. A harness that cannot
// do that, or whose database has one writer, ends the check.
func (k *kit) lock(ids ...string) (unlock func()) {
	if k.single() {
		k.undeclared("locks beside other writers")
	}
	tx := k.begin()
	l := needs[Locker](k, tx, "a transaction that can lock a record")
	for _, id := range ids {
		k.must("lock a record", l.Lock(k.ctx, k.route, id))
	}
	return func() { k.rollback(tx) }
}

// part is the slots of the check's route.
func (k *kit) part(s core.Slots) core.RouteSlots { return core.RouteSlots{Route: k.route, Slots: s} }

func (k *kit) all() core.RouteSlots { return k.part(core.AllSlots) }

// ofKey asks for up to limit records of a key of the check's route.
func (k *kit) ofKey(key string, limit int) []core.KeyRange {
	return []core.KeyRange{{Route: k.route, Key: key, UpToSeq: forever, Limit: limit}}
}

// keyIn returns the nth key whose slot is in the set, on the check's route.
func (k *kit) keyIn(s core.Slots, nth int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("key-", i); s.Has(core.SlotOf(k.route, key, "")) {
			if nth--; nth < 0 {
				return key
			}
		}
	}
}

// idIn returns a new id whose slot, without a key, is in the set.
func (k *kit) idIn(s core.Slots) string {
	for {
		if id := waybill.NewID(); s.Has(core.SlotOf(k.route, "", id)) {
			return id
		}
	}
}

// stored checks a stored record as far as the harness can look.
func (k *kit) stored(when, id string, want Stored) {
	in, ok := core.As[Inspector](k.h)
	if !ok {
		return
	}
	all, err := in.Records(k.ctx, k.route)
	k.must("look at stored records", err)
	at := slices.IndexFunc(all, func(s Stored) bool { return s.ID == id })
	k.failIf(at < 0, "%s: the record is not stored any more", when)
	want.ID = id
	k.failIf(all[at] != want, "%s: stored %+v, want %+v", when, all[at], want)
}
