package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sleep"
)

var errNo = errors.New("the broker said no")

const (
	short = 300 * time.Millisecond // leases and delays that a check waits for
	long  = time.Minute            // waits that something else must end
	far   = time.Hour              // delays that a check does not wait for
	pause = 5 * time.Millisecond   // between looks
	slack = 5 * time.Millisecond   // rounding of times by a store
)

// lax is a lease or a delay that a check waits for, and before whose end a slow store must make some calls.
func lax() time.Duration { return min(patience.For(3*time.Second), 20*time.Second) }

// kit is what a check works with. Its methods give up the check when something fails.
type kit struct {
	ctx    context.Context //nolint:containedctx // a kit lives as long as one check
	h      Harness
	store  core.OutboxStore
	route  string // the check's own
	topic  string
	blocks []string // the route, if an abandoned record blocks its key there
	driver *driver
	truths int // rows of truth tables
	*opened
}

// opened is what the check has to end.
type opened struct {
	join    sync.Once
	mu      sync.Mutex
	txs     []Tx
	kits    []*kit
	players []*player
	ids     []string // of all that was staged, in this order
}

func newKit(ctx context.Context, h Harness) *kit {
	s := h.Store()
	return &kit{ctx: ctx, h: h, store: s, route: "r-" + waybill.NewID(), topic: "storetest.topic", driver: newDriver(), opened: &opened{}}
}

// other returns a kit on another route of h, for the same check.
func (k *kit) other(h Harness) *kit {
	o := newKit(k.ctx, h)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kits = append(k.kits, o)
	return o
}

// blocking returns k with a route on which an abandoned record blocks its key.
func (k *kit) blocking() *kit {
	b := *k
	b.blocks = []string{k.route}
	return &b
}

// until returns k with another context.
func (k *kit) until(ctx context.Context) *kit {
	b := *k
	b.ctx = ctx
	return &b
}

// inLane returns k with a lane of its route.
func (k *kit) inLane(l waybill.Lane) *kit {
	b := *k
	b.route = waybill.LaneRoute(k.route, l)
	return &b
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

// answers fails unless err matches want.
func (k *kit) answers(what string, want, err error) {
	k.failIf(!errors.Is(err, want), "%s: got %w, want %w", what, err, want)
}

// invalid fails unless err is a *waybill.InvalidError.
func (k *kit) invalid(what string, err error) {
	_, ok := errors.AsType[*waybill.InvalidError](err)
	k.failIf(!ok, "%s: got %w, want a *waybill.InvalidError", what, err)
}

// ended returns a context that has ended.
func (k *kit) ended() context.Context {
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	return ctx
}

// undeclared ends the check since the store or the harness does not declare what.
func (k *kit) undeclared(what string) { k.fail("%w: %s", ErrNotDeclared, what) }

// capability returns the store's T, and ends the check if it has none.
func capability[T any](k *kit) T { return needs[T](k, k.store) }

// needs returns the T of the store or of the harness, and ends the check if it has none.
func needs[T any](k *kit, of any) T {
	c, ok := core.As[T](of)
	if !ok {
		k.undeclared(reflect.TypeFor[T]().String())
	}
	return c
}

// close ends the transactions that the check began, and its members.
func (k *kit) close() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), patience.For(suitetest.Patience))
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range k.kits {
		o.close()
	}
	for _, tx := range k.txs {
		_ = tx.Rollback(ctx)
	}
	for _, p := range k.players {
		p.member.heartbeat(p.k.until(ctx), core.HeartbeatRequest{Leave: true})
	}
	k.driver.leave(k.until(ctx))
}

// sleep waits for d.
func (k *kit) sleep(d time.Duration) {
	k.must("the check ran out of time", sleep.For(k.ctx, d))
}

// msg returns a message with an id of its own on the check's route and topic.
func (k *kit) msg(opts ...waybill.MessageOption) waybill.Message {
	own := []waybill.MessageOption{waybill.Routes(k.route), waybill.ID(waybill.NewID())}
	return waybill.RawMessage(k.topic, "text/plain", []byte("body"), append(own, opts...)...)
}

func onTopic(s string) waybill.MessageOption { return func(m *waybill.Message) { m.Topic = s } }

func fromSource(s string) waybill.MessageOption { return func(m *waybill.Message) { m.Source = s } }

func (k *kit) msgs(n int, opts ...waybill.MessageOption) []waybill.Message {
	out := make([]waybill.Message, n)
	for i := range out {
		out[i] = k.msg(opts...)
	}
	return out
}

// begin starts a transaction. The check's member is there before the first one.
func (k *kit) begin() Tx {
	k.join.Do(func() { k.driver.own(k) })
	return k.raw()
}

// raw is begin, without a member of the check.
func (k *kit) raw() Tx {
	tx, err := k.h.Begin(k.ctx)
	k.must("begin", err)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.txs = append(k.txs, tx)
	return tx
}

// stageIn stages msgs in tx, which must answer with their ids and routes in order.
func (k *kit) stageIn(tx Tx, msgs ...waybill.Message) []waybill.Staged {
	staged := k.mustStage(tx, msgs...)
	i := 0
	for _, m := range msgs {
		for _, route := range m.Routes {
			k.failIf(staged[i].ID != m.ID || staged[i].Route != route, "stage answered %+v in place %d, want id %q and route %q", staged[i], i, m.ID, route)
			i++
		}
	}
	return staged
}

func (k *kit) commit(tx Tx) { k.must("commit", tx.Commit(k.ctx)) }

func (k *kit) rollback(tx Tx) { k.must("rollback", tx.Rollback(k.ctx)) }

// stage stages msgs in a transaction of their own and returns their ids.
func (k *kit) stage(msgs ...waybill.Message) []string {
	tx := k.begin()
	staged := k.stageIn(tx, msgs...)
	k.commit(tx)
	return stagedIDs(staged)
}

// stageBusy is stage for several writers at once: an outage, such as a busy database, is tried again.
func (k *kit) stageBusy(msgs ...waybill.Message) {
	for w := (suitetest.Wait{}); ; {
		err := k.tryStage(k.ctx, msgs...)
		if err == nil {
			return
		}
		k.failIf(!w.Again(k.ctx), "stage: %w", err)
	}
}

func (k *kit) tryStage(ctx context.Context, msgs ...waybill.Message) error {
	tx, err := k.h.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err = tx.Stage(ctx, msgs...); err == nil {
		if err = tx.Commit(ctx); err == nil {
			return nil
		}
	}
	return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
}

// stored looks at the stored record with id; nil if it is gone, or if the harness cannot look, which ok says.
func (k *kit) stored(id string) (rec *StoredRecord, ok bool) {
	in, ok := core.As[Inspector](k.h)
	if !ok {
		return nil, false
	}
	all, err := in.Records(k.ctx, k.route)
	k.must("look at stored records", err)
	for i := range all {
		if all[i].ID == id {
			return &all[i], true
		}
	}
	return nil, true
}

// state checks a stored record as far as the harness can look.
func (k *kit) state(when, id string, want StoredRecord) {
	rec, ok := k.stored(id)
	if !ok {
		return
	}
	k.failIf(rec == nil, "%s: the record is not stored any more", when)
	want.ID = id
	k.failIf(*rec != want, "%s: stored %+v, want %+v", when, *rec, want)
}

// note remembers what was staged, so that failures can name it.
func (k *kit) note(staged []waybill.Staged) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range staged {
		if !slices.Contains(k.ids, staged[i].ID) {
			k.ids = append(k.ids, staged[i].ID)
		}
	}
}

// name names a record by its place among all that the check has staged on the route.
func (k *kit) name(r *core.Record) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprintf("message %d of %d (id %s, number %d, key %q, attempts %d, crashes %d)", slices.Index(k.ids, r.ID), len(k.ids),
		r.ID, r.Seq, r.Envelope.Key, r.Attempts, r.Crashes)
}

func stagedIDs(ss []waybill.Staged) []string {
	return suitetest.Each(ss, func(s *waybill.Staged) string { return s.ID })
}

func recordIDs(rs []core.Record) []string {
	return suitetest.Each(rs, func(r *core.Record) string { return r.ID })
}

// mustStage stages msgs in tx and does not check the ids.
func (k *kit) mustStage(tx Tx, msgs ...waybill.Message) []waybill.Staged {
	staged, err := tx.Stage(k.ctx, msgs...)
	k.must("stage", err)
	k.note(staged)
	n := 0
	for i := range msgs {
		n += max(len(msgs[i].Routes), 1)
	}
	k.failIf(len(staged) != n, "stage returned %d results for %d messages and routes", len(staged), n)
	return staged
}

func (k *kit) stageNow(msgs ...waybill.Message) []waybill.Staged {
	tx := k.begin()
	staged := k.mustStage(tx, msgs...)
	k.commit(tx)
	return staged
}

// conflict stages msgs, which must be refused since another source's message has the id or the dedupe key of one.
func (k *kit) conflict(what string, msgs ...waybill.Message) {
	tx := k.begin()
	_, err := tx.Stage(k.ctx, msgs...)
	k.failIf(waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonIDConflict,
		"%s: stage answered %v, want class %v and reason %q", what, err, waybill.ClassPermanent, waybill.ReasonIDConflict)
	k.rollback(tx)
}

// duplicate is the answer to a message that is a duplicate of id.
func (k *kit) duplicate(id string) waybill.Staged {
	return waybill.Staged{ID: id, Route: k.route, Duplicate: true}
}

func (k *kit) expect(where string, got, want waybill.Staged) {
	k.failIf(got != want, "%s: stage answered %+v, want %+v", where, got, want)
}

func (k *kit) cancelIn(tx Tx, keys ...waybill.CancelKey) []waybill.CancelStatus {
	c, ok := tx.(Canceller)
	if !ok {
		k.undeclared("cancelling")
	}
	got, err := c.Cancel(k.ctx, keys...)
	k.must("cancel", err)
	k.failIf(len(got) != len(keys), "cancel returned %d answers for %d keys", len(got), len(keys))
	return got
}

// cancel cancels in a transaction of its own, which must answer want.
func (k *kit) cancel(where string, want waybill.CancelStatus, key waybill.CancelKey) {
	tx := k.begin()
	got := k.cancelIn(tx, key)
	k.commit(tx)
	k.failIf(got[0] != want, "%s: cancel answered %v, want %q", where, got[0], want)
}

// canCancel ends the check if the harness cannot cancel.
func (k *kit) canCancel() {
	tx := k.raw()
	k.cancelIn(tx)
	k.rollback(tx)
}

func (k *kit) byID(id string) waybill.CancelKey { return waybill.CancelKey{Route: k.route, ID: id} }

func (k *kit) byKey(key string) waybill.CancelKey {
	return waybill.CancelKey{Route: k.route, Topic: k.topic, DedupeKey: key}
}
