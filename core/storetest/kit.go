package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	patience = 10 * time.Second       // for what must happen
	short    = 300 * time.Millisecond // leases and delays that a check waits for
	long     = time.Minute            // leases that a check does not wait for
	far      = time.Hour              // delays that a check does not wait for
	pause    = 5 * time.Millisecond   // between looks
	slack    = 5 * time.Millisecond   // rounding of times by a store
)

// kit is what a check works with. Its methods give up the check when something fails.
type kit struct {
	ctx    context.Context //nolint:containedctx // a kit lives as long as one check
	h      Harness
	store  core.OutboxStore
	traits core.StoreTraits
	route  string // the check's own
	topic  string
	open   []Tx
	onFail func(err error) // gives up in another way than by a panic with failure
}

func newKit(ctx context.Context, h Harness) *kit {
	s := h.Store()
	return &kit{ctx: ctx, h: h, store: s, traits: s.Traits(), route: "r-" + core.NewID(), topic: "storetest.topic"}
}

func (k *kit) fail(format string, a ...any) {
	err := fmt.Errorf(format, a...)
	if k.onFail != nil {
		k.onFail(err)
	}
	panic(failure{err})
}

func (k *kit) must(what string, err error) {
	if err != nil {
		k.fail("%s: %w", what, err)
	}
}

// undeclared ends the check since the store or the harness does not declare what.
func (k *kit) undeclared(what string) { k.fail("%w: %s", ErrNotDeclared, what) }

func (k *kit) close() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), patience)
	defer cancel()
	for _, tx := range k.open {
		_ = tx.Rollback(ctx)
	}
}

// parallel runs fn n times at once, each with a kit of its own on the same route, and gives up with the first failure.
func (k *kit) parallel(n int, fn func(i int, k *kit)) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			mine := newKit(k.ctx, k.h)
			mine.route = k.route
			errs[i] = guard(mine, func(k *kit) { fn(i, k) })
		})
	}
	wg.Wait()
	k.must("in parallel", core.Results(errs).FirstErr())
}

// sleep waits for d.
func (k *kit) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-k.ctx.Done():
		k.fail("the check ran out of time: %w", k.ctx.Err())
	}
}

// msg returns a message with an id of its own on the check's route and topic.
func (k *kit) msg(opts ...core.MessageOption) core.Message {
	own := []core.MessageOption{core.Routes(k.route), core.ID(core.NewID())}
	return core.RawMessage(k.topic, "text/plain", []byte("body"), append(own, opts...)...)
}

func (k *kit) msgs(n int, opts ...core.MessageOption) []core.Message {
	out := make([]core.Message, n)
	for i := range out {
		out[i] = k.msg(opts...)
	}
	return out
}

func (k *kit) begin() Tx {
	tx, err := k.h.Begin(k.ctx)
	k.must("begin", err)
	k.open = append(k.open, tx)
	return tx
}

func (k *kit) stageIn(tx Tx, msgs ...core.Message) []core.Staged {
	staged, err := tx.Stage(k.ctx, msgs...)
	k.must("stage", err)
	var want, got []core.Staged
	for _, m := range msgs {
		for _, route := range m.Routes {
			want = append(want, core.Staged{ID: m.ID, Route: route})
		}
	}
	for _, s := range staged {
		got = append(got, core.Staged{ID: s.ID, Route: s.Route})
	}
	if !slices.Equal(got, want) {
		k.fail("stage returned %d results for %d messages and routes, or not in their order", len(got), len(want))
	}
	return staged
}

func (k *kit) commit(tx Tx) { k.must("commit", tx.Commit(k.ctx)) }

func (k *kit) rollback(tx Tx) { k.must("rollback", tx.Rollback(k.ctx)) }

// stage stages msgs in a transaction of their own and returns their ids.
func (k *kit) stage(msgs ...core.Message) []string {
	tx := k.begin()
	staged := k.stageIn(tx, msgs...)
	k.commit(tx)
	return stagedIDs(staged)
}

// stageBusy is stage for several writers at once: an outage, such as a busy database, is tried again.
func (k *kit) stageBusy(msgs ...core.Message) {
	for deadline := time.Now().Add(patience); ; k.sleep(pause) {
		err := k.tryStage(k.ctx, msgs...)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			k.fail("stage: %w", err)
		}
	}
}

func (k *kit) tryStage(ctx context.Context, msgs ...core.Message) error {
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

// mod changes a claim request.
type mod func(r *core.ClaimRequest)

func limit(n int) mod           { return func(r *core.ClaimRequest) { r.MaxRecords = n } }
func lease(d time.Duration) mod { return func(r *core.ClaimRequest) { r.Lease = d } }
func order(o core.Order) mod    { return func(r *core.ClaimRequest) { r.Routes[0].Order = o } }
func skip(topics ...string) mod {
	return func(r *core.ClaimRequest) { r.Routes[0].SkipTopics = topics }
}
func inSession(s int64) mod       { return func(r *core.ClaimRequest) { r.Session = s } }
func alone(r *core.ClaimRequest)  { r.Alone = true }
func blocks(r *core.ClaimRequest) { r.Routes[0].BlockAfterAbandon = true }

// request returns a claim of the check's route, in key order if the store has it.
func (k *kit) request(mods ...mod) core.ClaimRequest {
	o := core.OrderBestEffort
	if k.traits.KeyOrder {
		o = core.OrderPerKey
	}
	req := core.ClaimRequest{Owner: "storetest", Routes: []core.RouteOrder{{Route: k.route, Order: o}}, MaxRecords: 100, Lease: long}
	for _, m := range mods {
		m(&req)
	}
	if k.traits.MaxClaim > 0 {
		req.MaxRecords = min(req.MaxRecords, k.traits.MaxClaim)
	}
	return req
}

// claim asks once and checks what every answer must be like.
func (k *kit) claim(mods ...mod) core.Claim {
	req := k.request(mods...)
	asked := time.Now()
	c, err := k.store.Claim(k.ctx, req)
	k.must("claim", err)
	late := time.Since(asked) >= req.Lease // the lease may be over already
	if len(c.Records) > req.MaxRecords || req.Alone && len(c.Records) > 1 {
		k.fail("a claim of at most %d (alone: %v) returned %d records", req.MaxRecords, req.Alone, len(c.Records))
	}
	last := map[string]int64{}
	for i := range c.Records {
		r := &c.Records[i]
		at := slices.IndexFunc(req.Routes, func(o core.RouteOrder) bool { return o.Route == r.Route })
		switch {
		case at < 0:
			k.fail("a record of route %q was claimed, which was not asked for", r.Route)
		case r.Lease.Remaining <= 0 && !late || r.Lease.Remaining > req.Lease:
			k.fail("a lease of %s was answered with %s remaining", req.Lease, r.Lease.Remaining)
		case r.Age < 0:
			k.fail("a record has the negative age %s", r.Age)
		case req.Alone && r.Crashes < core.SuspectCrashes:
			k.fail("a claim for a suspect returned a record with %d crashes", r.Crashes)
		case !req.Alone && r.Crashes >= core.SuspectCrashes:
			k.fail("a record with %d crashes was not claimed alone", r.Crashes)
		case req.Routes[at].Order != core.OrderHLC && r.Seq <= last[r.Route]:
			k.fail("a claim returned sequence %d after %d", r.Seq, last[r.Route])
		}
		last[r.Route] = r.Seq
	}
	return c
}

// try claims until there is nothing more for now, or limit records came, and returns them.
func (k *kit) try(n int, mods ...mod) []core.Record {
	var out []core.Record
	for busy := 0; len(out) < n; {
		c := k.claim(append(slices.Clone(mods), func(r *core.ClaimRequest) { r.MaxRecords = min(r.MaxRecords, n-len(out)) })...)
		out = append(out, c.Records...)
		if len(c.Records) > 0 {
			busy = 0
			continue
		}
		if !c.More {
			break
		}
		if busy++; busy > 1000 {
			k.fail("1000 claims in a row returned no record and said that there are more")
		}
	}
	return out
}

// take claims until n records came. A store may hand them out in several claims.
func (k *kit) take(n int, mods ...mod) []core.Record {
	var out []core.Record
	for deadline := time.Now().Add(patience); ; k.sleep(pause) {
		if out = append(out, k.try(n-len(out), mods...)...); len(out) >= n {
			return out
		}
		if time.Now().After(deadline) {
			k.fail("claimed %d records within %s, want %d: missing ones are lost, or held for no reason", len(out), patience, n)
		}
	}
}

// takeIDs is take, and the records must have these ids in this order.
func (k *kit) takeIDs(ids []string, mods ...mod) []core.Record {
	rs := k.take(len(ids), mods...)
	if got := recordIDs(rs); !slices.Equal(got, ids) {
		k.fail("claimed %s, want %s", names(got, ids), names(ids, ids))
	}
	return rs
}

// none fails if anything can be claimed now.
func (k *kit) none(why string, mods ...mod) {
	for range 2 {
		if rs := k.try(1, mods...); len(rs) > 0 {
			r := &rs[0]
			k.fail("claimed a record (attempts %d, crashes %d, key %q), but %s", r.Attempts, r.Crashes, r.Envelope.Key, why)
		}
	}
}

// hidden fails if a message of a running transaction can be claimed. A store with a single writer may be busy instead. On a
// slow machine a claim that was given up may take the message after its commit: its lease is short.
func (k *kit) hidden() {
	ctx, cancel := context.WithTimeout(k.ctx, short)
	defer cancel()
	if c, err := k.store.Claim(ctx, k.request(func(r *core.ClaimRequest) { r.Lease = short })); err == nil && len(c.Records) > 0 {
		k.fail("claimed a message whose transaction has not committed")
	}
}

// expire waits until a lease or delay of d, that began before now, is over.
func (k *kit) expire(d time.Duration) { k.sleep(d + 4*slack) }

// settle persists outcomes, which must all succeed.
func (k *kit) settle(outcomes ...core.Outcome) {
	res := k.settleAll(outcomes...)
	for i := range outcomes {
		k.must(fmt.Sprintf("settle outcome %d of %d (%s)", i, len(outcomes), outcomes[i].Event()), res[i])
	}
}

func (k *kit) settleAll(outcomes ...core.Outcome) core.Results {
	res := k.store.Settle(k.ctx, outcomes)
	if len(res) != len(outcomes) {
		k.fail("settle returned %d results for %d outcomes", len(res), len(outcomes))
	}
	return res
}

// lost settles o, which must be refused as stale.
func (k *kit) lost(why string, o core.Outcome) {
	if err := k.settleAll(o)[0]; !errors.Is(err, core.ErrLeaseLost) {
		k.fail("settle (%s) %s: got %v, want core.ErrLeaseLost", o.Event(), why, err)
	}
}

// published settles all of rs as published.
func (k *kit) published(rs ...core.Record) { k.settle(outcomes(rs, core.Published)...) }

// drain claims and publishes until n records came, and returns them in claimed order.
func (k *kit) drain(n int, mods ...mod) []core.Record {
	var out []core.Record
	for len(out) < n {
		rs := k.take(1, mods...)
		k.published(rs...)
		out = append(out, rs...)
	}
	return out
}

// drainIDs is drain, and the records must have these ids in this order.
func (k *kit) drainIDs(ids []string, mods ...mod) {
	if got := recordIDs(k.drain(len(ids), mods...)); !slices.Equal(got, ids) {
		k.fail("claimed in the order %s, want %s", names(got, ids), names(ids, ids))
	}
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
	if rec == nil {
		k.fail("%s: the record is not stored any more", when)
	}
	want.ID = id
	if *rec != want {
		k.fail("%s: stored %+v, want %+v", when, *rec, want)
	}
}

func outcomes(rs []core.Record, fn func(*core.Record) core.Outcome) []core.Outcome {
	out := make([]core.Outcome, len(rs))
	for i := range rs {
		out[i] = fn(&rs[i])
	}
	return out
}

func stagedIDs(ss []core.Staged) []string {
	out := make([]string, len(ss))
	for i := range ss {
		out[i] = ss[i].ID
	}
	return out
}

func recordIDs(rs []core.Record) []string {
	out := make([]string, len(rs))
	for i := range rs {
		out[i] = rs[i].Envelope.ID
	}
	return out
}

// names replaces ids by their numbers among all, for messages that people can read.
func names(ids, all []string) string {
	const most = 50
	var out []int
	for _, id := range ids[:min(len(ids), most)] {
		out = append(out, slices.Index(all, id))
	}
	if len(ids) > most {
		return fmt.Sprintf("%v and %d more", out, len(ids)-most)
	}
	return fmt.Sprint(out)
}
