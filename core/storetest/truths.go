package storetest

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var ruleChecks = []named{
	{"rules-cancel", rulesCancel},
	{"rules-settle", rulesSettle},
	{"rules-hold", rulesHold},
	{"rules-release", rulesRelease},
	{"rules-redrive", rulesRedrive},
	{"rules-sweep", rulesSweep},
	{"rules-decide", rulesDecide},
	{"rules-heads", rulesHeads},
	{"rules-purge", rulesPurge},
	{"rules-counts", rulesCounts},
	{"rules-moves", rulesMoves},
	{"rules-renew", rulesRenew},
	{"rules-remove", rulesRemove},
}

// Cancel answers as rules.Cancellation does, ends what that cancels and nothing else, and tells the owners of keys.
// ST-09.
func rulesCancel(k *kit) {
	k.canCancel()
	t := k.table(combinations(func(f facts) bool { return f.held != self && f.partition == self }))
	told := t.told(func() {
		got := t.cancel()
		t.differences("cancel", func(r *truth) (string, string) { return got[r.ID].String(), rules.Cancellation(&r.Row, r.in).String() })
		t.now("after a cancel", func(r *truth) *rules.Row {
			if !cancels(got[r.ID]) {
				return &r.Row
			}
			end := rules.End(&r.Row, r.in, waybill.ReasonCancelled)
			return &end
		})
	})
	t.differences("who is told of a cancel", func(r *truth) (string, string) {
		return yes(told(r, core.NoticeKey)), yes(!r.Live() && rules.Tells(&r.was))
	})
}

// Settle answers as rules.Settle and rules.Confirmed do, and stores their results. ST-07.
func rulesSettle(k *kit) {
	ways := []struct {
		name string
		fn   func(r core.Record) core.Outcome
	}{
		{"published", func(r core.Record) core.Outcome { return core.Published(&r) }},
		{"an old version published", func(r core.Record) core.Outcome { r.Version--; return core.Published(&r) }},
		{"another message published", func(r core.Record) core.Outcome { r.ID = "another"; return core.Published(&r) }},
		{"rejected", func(r core.Record) core.Outcome { return core.Retry(&r, errors.New("again no"), 3*far) }},
		{"an old version rejected", func(r core.Record) core.Outcome { r.Version--; return core.Retry(&r, errNo, 3*far) }},
		{"rejected and unknown", func(r core.Record) core.Outcome { return core.Retry(&r, nil, 3*far).WithUnknown() }},
		{"abandoned", func(r core.Record) core.Outcome { return core.Abandon(&r, waybill.ReasonRejected, errors.New("never")) }},
		{"expired", func(r core.Record) core.Outcome { return core.Abandon(&r, waybill.ReasonExpired, nil) }},
		{"set aside", func(r core.Record) core.Outcome { return core.Cancel(&r, waybill.ReasonSetAside) }},
		{"released", func(r core.Record) core.Outcome { return core.Release(&r, 3*far, false) }},
		{"released as unknown", func(r core.Record) core.Outcome { return core.Release(&r, 3*far, true) }},
	}
	list := combinations(func(f facts) bool {
		return f.line != timer && f.past != left && f.past != unknown && f.partition != nobody && f.cancellable && !f.careful
	})
	t := k.table(slices.Repeat(list, len(ways)))
	outcomes, wants := make([]core.Outcome, len(t.rows)), make([]rules.Change, len(t.rows))
	for i, r := range t.rows {
		r.way = ways[i/len(list)].name
		outcomes[i] = ways[i/len(list)].fn(r.rec)
		wants[i] = rules.Change{Row: r.Row}
		switch o := &outcomes[i]; {
		case o.Event() != core.EventConfirmed:
			to, err := rules.Settle(&r.Row, o, t.self.Session, r.partition == self)
			if r.want = answer(err); err == nil {
				wants[i] = to
			}
		case o.Ref().ID != r.ID:
			r.want = answer(rules.Confirmed(&r.Row, o.Ref()))
		default:
			r.want, wants[i].Row = "done", rules.Publish(&r.Row)
		}
	}
	res := k.store.Settle(k.ctx, t.self.Session, outcomes)
	k.failIf(len(res) != len(outcomes), "settle returned %d results for %d outcomes", len(res), len(outcomes))
	t.each("settle", func(i int, r *truth) (string, string) { return answer(res[i]), r.want })
	t.now("after a settle", func(r *truth) *rules.Row { return &wants[slices.Index(t.rows, r)].Row })
	stored := t.stored()
	t.each("after a settle", func(i int, r *truth) (string, string) {
		st := stored[r.ID]
		if st == nil {
			return "", ""
		}
		text, due := wants[i].Error, time.Duration(0)
		if text == "" && r.line == retry {
			text = errNo.Error()
		}
		if r.Holder == 0 && r.Waits {
			if due = far; wants[i].Due {
				due = wants[i].In
			}
		}
		return fmt.Sprintf("error %q, due in %s", st.LastError, st.DueIn.Round(far)), fmt.Sprintf("error %q, due in %s", text, due)
	})
	t.confirm()
	t.cancelAll("after a settle")
}

// confirm settles what has ended as published, once more.
func (t *table) confirm() {
	var again []core.Outcome
	var of []*truth
	for _, r := range t.rows {
		r.got, r.want = "", ""
		if !r.Live() {
			again, of = append(again, core.Published(&r.rec)), append(of, r)
		}
	}
	for i, err := range t.k.store.Settle(t.k.ctx, t.self.Session, again) {
		kept := &of[i].Row
		if kept.State == core.StatePublished {
			kept = nil
		}
		of[i].got, of[i].want = answer(err), answer(rules.Confirmed(kept, again[i].Ref()))
	}
	t.k.truths += len(again)
	t.differences("settle as published what has ended", func(r *truth) (string, string) { return r.got, r.want })
	t.now("after what had ended was settled as published", func(r *truth) *rules.Row { return &r.Row })
}

// answer is the answer to an outcome, in a word.
func answer(err error) string {
	for _, why := range []error{core.ErrLocked, core.ErrChanged, core.ErrFenced} {
		if errors.Is(err, why) {
			return why.Error()
		}
	}
	if err != nil {
		return err.Error()
	}
	return "done"
}

// misnamed returns the ref of r as it is named: as it is, by an old version, or with another message's id.
func misnamed(r *truth, way int) core.Ref {
	ref := r.Ref
	switch way {
	case 1:
		ref.Version--
	case 2:
		ref.ID = "another"
	}
	return ref
}

// Take answers as rules.Hold does, and writes the holds of that answer. DB-02.
func rulesHold(k *kit) {
	list := combinations(func(f facts) bool {
		return f.line != timer && f.past == untouched && !f.cancellable && !f.careful
	})
	t := k.table(slices.Repeat(list, 6))
	for _, deliver := range []bool{false, true} {
		var refs []core.Ref
		var of []*truth
		for i, r := range t.rows {
			if way := i / len(list); deliver == (way > 2) {
				r.way = []string{"named", "an old version", "another message"}[way%3]
				refs, of = append(refs, misnamed(r, way%3)), append(of, r)
			}
		}
		for i, got := range t.self.take(deliver, refs...) {
			r := of[i]
			f := &r.Row
			if refs[i].ID != r.ID {
				f = nil
			}
			holdStatus, writes := rules.Hold(f, refs[i], t.self.Session, r.partition == self, false)
			to := r.Row
			if writes {
				to = rules.Held(&r.Row, t.self.Session, deliver)
			}
			deliveries := 0
			if holdStatus == core.HoldGranted {
				deliveries = to.Deliveries
			}
			r.got, r.want = fmt.Sprint(got.Status, got.Deliveries), fmt.Sprint(holdStatus, deliveries)
			r.next = to
		}
	}
	t.differences("hold", func(r *truth) (string, string) { return r.got, r.want })
	t.now("after a take", func(r *truth) *rules.Row { return &r.next })
}

// ReleasePartition leaves the holds that rules.Kept says, and answers as rules.GivenUp does. DB-04.
func rulesRelease(k *kit) {
	// Records in a crash window are in another partition.
	list := combinations(func(f facts) bool {
		return f.line != timer && f.past == untouched && f.partition == self && !f.cancellable
	})
	t := k.table(slices.Repeat(list, 4))
	var refs []core.Ref
	for i, r := range t.rows {
		way := i / len(list)
		r.way, r.next = []string{"named", "an old version", "another message", "not named"}[way], r.Row
		in := !r.careful
		if way == 3 || !rules.Kept(&r.Row, misnamed(r, way), t.self.Session, in) {
			if in && r.held == self {
				r.next.Holder = 0
			}
		} else {
			r.next.Holder = t.self.Session
		}
		if way != 3 {
			refs = append(refs, misnamed(r, way))
		}
	}
	for _, u := range t.partitions() {
		for _, by := range []int64{-1, 0, 1} {
			asked := u
			asked.Term, asked.ReadAfter = u.Term+by, 7
			wantDone, wantErr := rules.GivenUp(u.Owner, u.Term, t.self.Session, asked.Term)
			if !wantDone && wantErr == nil {
				continue // below
			}
			done, err := k.store.ReleasePartition(k.ctx, t.self.Session, asked, nil)
			k.failIf(done != wantDone || answer(err) != answer(wantErr),
				"a partition of session %d in term %d was given up by %d for term %d: got %v and %v, want %v and %v", u.Owner, u.Term, t.self.Session, asked.Term, done, err, wantDone, wantErr)
		}
	}
	partition := t.partitions()[partitionOf(facts{partition: self})]
	partition.ReadAfter = 7
	done, err := k.store.ReleasePartition(k.ctx, t.self.Session, partition, refs)
	k.failIf(!done || err != nil, "release a partition: %v and %v", done, err)
	now := partition
	now.Owner, now.Term = 0, partition.Term+1
	got := t.partitions()[partitionOf(facts{partition: self})]
	k.failIf(got != now, "a partition was released, and is %+v, want %+v", got, now)
	t.now("after a release", func(r *truth) *rules.Row { return &r.next })
}

// A redrive makes of a record what rules.Requeue says, and tells its owner. OP-05.
func rulesRedrive(k *kit) {
	k.redriver()
	list := combinations(func(f facts) bool { return f.line != timer && f.held != self && f.partition == self && f.cancellable })
	t := k.table(slices.Repeat(list, 3))
	t.end(func(i int) waybill.Reason {
		return []waybill.Reason{"", waybill.ReasonRejected, waybill.ReasonSkipped}[i/len(list)]
	})
	t.refuse()
	told := t.told(func() {
		k.redrive(admin.RedriveRequest{Force: true})
		t.now("after a redrive", func(r *truth) *rules.Row {
			if r.State == core.StateAbandoned || r.State == core.StateFailed && r.Holder == 0 {
				r.Row, r.kind = rules.Requeue(&r.Row)
			}
			return &r.Row
		})
	})
	t.differences("who is told of a redrive", func(r *truth) (string, string) {
		if r.kind == 0 {
			return "", ""
		}
		return yes(told(r, r.kind) || told(r, core.NoticeReread) && r.kind == core.NoticeRecord), yes(true)
	})
	t.cancelAll("after a redrive")
}

// refuse compares the refusals of a redrive without force with those of admin.RedriveRequest.
func (t *table) refuse() {
	tx := t.k.raw()
	t.k.mustStage(tx, t.k.other(t.k.h).msg()) // so that no record of the table was staged last
	t.k.commit(tx)
	t.k.sleep(pause)
	for _, req := range []admin.RedriveRequest{
		{}, {BlockAfterAbandon: true}, {InboxRetention: time.Millisecond}, {InboxRetention: far, BlockAfterAbandon: true},
	} {
		var want admin.Redriven
		for _, r := range t.rows {
			if req.Takes(r.Shown(), r.Reason) {
				want.Count(req.Refusal(&admin.Candidate{State: r.State, Reason: r.Reason, Age: short, Keyed: r.Keyed}))
			}
		}
		t.k.truths += want.Matched
		req.DryRun = true
		got := t.k.redrive(req)
		t.k.failIf(!maps.Equal(got.Refused, want.Refused) || got.Matched != want.Matched || got.Changed != want.Changed,
			"a redrive for inboxes that remember for %s, blocking %v, would be %+v, want %+v", req.InboxRetention, req.BlockAfterAbandon, got, want)
	}
}

// The cleaning ends what rules.Sweeps says, and tells the owners of keys. ST-11.
func rulesSweep(k *kit) {
	k.cleaner()
	list := combinations(func(f facts) bool {
		return f.held != self && f.partition != other && f.past != left && f.past != unknown && f.cancellable
	})
	for i := range list {
		list[i].expires = true
	}
	t := k.table(list)
	k.expire(2 * short)
	told := t.told(func() {
		k.clean()
		t.now("after a cleaning", func(r *truth) *rules.Row {
			var ends bool
			if ends, r.tells = rules.Sweeps(&r.Row, r.in); ends {
				r.Row = rules.End(&r.Row, r.in, waybill.ReasonExpired)
			}
			return &r.Row
		})
	})
	t.differences("who is told of a cleaning", func(r *truth) (string, string) {
		return yes(told(r, core.NoticeKey)), yes(r.tells)
	})
	if _, ok := core.As[admin.Redriver](k.store); !ok {
		return
	}
	k.redrive(admin.RedriveRequest{Force: true})
	t.now("after a redrive of what was cleaned", func(r *truth) *rules.Row {
		if !r.Live() || r.State == core.StateFailed && r.Holder == 0 {
			r.Row, _ = rules.Requeue(&r.Row)
		}
		return &r.Row
	})
	t.cancelAll("after a cleaning and a redrive")
}

// A decision ends what rules.Decides says, and tells the owner of anything else. OP-18.
func rulesDecide(k *kit) {
	k.terminator()
	list := combinations(func(f facts) bool {
		return f.held != self && f.partition != other && f.past != left && f.past != unknown
	})
	few := combinations(func(f facts) bool {
		return f.held != self && f.partition == self && f.past == untouched && !f.careful
	})
	ways := []string{"new", "about another message", "a number that no notice has", "ended so before", "ended otherwise before"}
	wayOf := func(i int) int { return (i - len(list) + len(few)) / len(few) }
	t := k.table(append(list, slices.Repeat(few, len(ways)-1)...))
	t.end(func(i int) waybill.Reason {
		return []waybill.Reason{"", "", "", waybill.ReasonSetAside, waybill.ReasonRejected}[max(wayOf(i), 0)]
	})
	asked := make([]admin.Decision, len(t.rows))
	for i, r := range t.rows {
		way := max(wayOf(i), 0)
		asked[i] = admin.Decision{Route: k.route, Seq: r.Seq, ID: r.ID}
		switch r.way = ways[way]; way {
		case 1:
			asked[i].ID = "another"
		case 2:
			asked[i].Number = math.MaxInt32
		}
	}
	told := t.told(func() {
		asked = t.decide(asked, false)
		t.now("after a decision", func(r *truth) *rules.Row { return &r.next })
	})
	t.each("who is told of a decision", func(i int, r *truth) (string, string) {
		return yes(told(r, core.NoticeDecide)) + yes(told(r, core.NoticeKey)),
			yes(asked[i].Result == admin.DecisionPending) + yes(r.tells)
	})
	t.decide(asked, true) // what has become of them
	t.now("after a look at decisions", func(r *truth) *rules.Row { return &r.next })
}

// A purge deletes what admin.PurgeRequest.Takes says, and tells the owners of keys. OP-10.
func rulesPurge(k *kit) {
	k.purger()
	list := combinations(func(f facts) bool {
		return f.held != self && f.partition == self && f.past == untouched && !f.cancellable && !f.careful
	})
	t := k.table(slices.Repeat(list, 3))
	t.end(func(i int) waybill.Reason {
		return []waybill.Reason{"", waybill.ReasonRejected, waybill.ReasonSkipped}[i/len(list)]
	})
	req := admin.PurgeRequest{Filter: k.mine(admin.Filter{}), Waiting: true, Page: admin.PageRequest{Limit: admin.MaxPageLimit}}
	takes := func(r *truth) bool { return req.Takes(r.State, r.Holder == 0 && r.Waits) }
	told := t.told(func() {
		_, err := k.purger().PurgeRecords(k.ctx, req)
		k.must("purge", err)
		t.compare("after a purge", func(r *truth) *rules.Row {
			if takes(r) {
				return nil
			}
			return &r.Row
		})
	})
	t.differences("who is told of a purge", func(r *truth) (string, string) {
		return yes(told(r, core.NoticeKey)), yes(takes(r) && rules.Tells(&r.Row))
	})
}

// Counts and lists show each record as rules.Row.Counted does. DB-11 OP-20.
func rulesCounts(k *kit) {
	k.counter()
	list := combinations(func(f facts) bool {
		return f.past == untouched && !f.careful && (f.line == timer || f.held == self || f.partition == self)
	})
	reasons := []waybill.Reason{"", waybill.ReasonRejected, waybill.ReasonSkipped, waybill.ReasonSetAside}
	t := k.table(slices.Repeat(list, len(reasons)))
	t.end(func(i int) waybill.Reason { return reasons[i/len(list)] })
	type kind struct {
		state  core.State
		reason waybill.Reason
	}
	want, got := map[kind]admin.Count{}, map[kind]admin.Count{}
	kinds := map[string]kind{}
	for _, r := range t.rows {
		state, reason, due := r.Counted(false)
		kinds[r.ID] = kind{state, reason}
		c := want[kinds[r.ID]]
		c.Route, c.State, c.Reason, c.N = k.route, state, reason, c.N+1
		if due {
			c.Due++
		}
		want[kinds[r.ID]] = c
	}
	for _, c := range k.counts() {
		c.Oldest = 0
		got[kind{c.State, c.Reason}] = c
	}
	k.failIf(!maps.Equal(got, want), "the counts of a route are %+v, want %+v", got, want)
	for of := range want {
		f := admin.Filter{States: []core.State{of.state}}
		if of.reason != "" {
			f.Reasons = []waybill.Reason{of.reason}
		}
		listed := t.listed(f)
		t.differences(fmt.Sprintf("a list of records that are %s %s", of.state, of.reason), func(r *truth) (string, string) {
			return yes(listed[r.ID] != nil), yes(kinds[r.ID] == of)
		})
	}
}

// decide sets records aside as an operator does, and returns the answers. told says that their notices are there.
func (t *table) decide(asked []admin.Decision, told bool) []admin.Decision {
	t.k.truths += len(asked)
	out := make([]admin.Decision, 0, len(asked))
	for page := range slices.Chunk(asked, admin.MaxPageLimit) {
		got, err := t.k.terminator().DecideRecords(t.k.ctx, admin.DecideRequest{Reason: waybill.ReasonSetAside, Decisions: page})
		t.k.must("decide about records", err)
		out = append(out, got...)
	}
	t.k.failIf(len(out) != len(asked), "%d answers to %d decisions", len(out), len(asked))
	t.each("decide", func(i int, r *truth) (string, string) {
		named := &r.Row
		if asked[i].ID != r.ID {
			named = nil
		}
		want, tells := rules.Decided(named, r.in, &asked[i], told && asked[i].Number != math.MaxInt32, waybill.ReasonSetAside)
		if r.next, r.tells = r.Row, tells; want == admin.DecisionCarriedOut && r.Live() {
			r.next = rules.End(&r.Row, r.in, waybill.ReasonSetAside)
		}
		return out[i].Result.String(), want.String()
	})
	return out
}

// end makes self end the records for which reason returns one, but for timers.
func (t *table) end(reason func(i int) waybill.Reason) {
	var outcomes []core.Outcome
	for i, r := range t.rows {
		if r.next = r.Row; reason(i) == "" || r.line == timer {
			continue
		}
		r.way = string(reason(i))
		o := core.Cancel(&r.rec, reason(i))
		if reason(i) == waybill.ReasonRejected {
			o = core.Abandon(&r.rec, reason(i), errNo)
		}
		to, err := rules.Settle(&r.Row, &o, t.self.Session, true)
		t.k.must("end a record", err)
		outcomes, r.next = append(outcomes, o), to.Row
	}
	t.k.must("end records", t.k.store.Settle(t.k.ctx, t.self.Session, outcomes).FirstErr())
	t.now("after some have ended", func(r *truth) *rules.Row { return &r.next })
}

func cancels(s waybill.CancelStatus) bool {
	return s == waybill.CancelDone || s == waybill.CancelUncertain
}

func yes(is bool) string {
	if is {
		return "yes "
	}
	return "no "
}

// cancels reports whether the harness can cancel.
func (k *kit) cancels() bool {
	tx := k.raw()
	defer k.rollback(tx)
	_, ok := tx.(Canceller)
	return ok
}

// now compares what is stored with what want says of each record, which is what the record is from then on.
func (t *table) now(when string, want func(r *truth) *rules.Row) {
	for _, r := range t.rows {
		r.was = r.Row
		r.Row = *want(r)
	}
	t.compare(when, func(r *truth) *rules.Row { return &r.Row })
}

// each is differences, with the numbers of records.
func (t *table) each(when string, fn func(i int, r *truth) (got, want string)) {
	i := -1
	t.differences(when, func(r *truth) (string, string) {
		i++
		return fn(i, r)
	})
}

// cancelAll cancels all records, as far as the harness can: the answers tell whether a record may have been sent.
func (t *table) cancelAll(when string) {
	if !t.k.cancels() {
		return
	}
	got := t.cancel()
	t.differences("cancel "+when, func(r *truth) (string, string) { return got[r.ID].String(), rules.Cancellation(&r.Row, r.in).String() })
}

// cancel cancels all records, and returns the answers by id.
func (t *table) cancel() map[string]waybill.CancelStatus {
	var keys []waybill.CancelKey
	for _, r := range t.rows {
		keys = append(keys, t.k.byID(r.ID))
	}
	tx := t.k.raw()
	got := t.k.cancelIn(tx, keys...)
	t.k.commit(tx)
	out := map[string]waybill.CancelStatus{}
	for i, key := range keys {
		out[key.ID] = got[i]
	}
	return out
}

// told runs fn and returns whether it wrote a notice of a kind about a record.
func (t *table) told(fn func()) func(r *truth, kind core.NoticeKind) bool {
	request := core.ReadRequest{Slots: all(t.k.route), Bytes: math.MaxInt32}
	before := map[int64]bool{}
	for _, c := range t.self.look(request).Notices {
		before[c.Number] = true
	}
	fn()
	after := t.self.look(request).Notices
	return func(r *truth, kind core.NoticeKind) bool {
		return slices.ContainsFunc(after, func(c core.Notice) bool {
			return !before[c.Number] && c.Kind == kind && (c.ID == r.ID && c.Seq == r.Seq || kind == core.NoticeReread && c.Seq <= r.Seq)
		})
	}
}

// partitions returns the partitions of the route, in order.
func (t *table) partitions() (out []core.PartitionState) {
	for _, u := range t.self.heartbeat(core.HeartbeatRequest{}).Partitions {
		if u.Partition.Route == t.k.route {
			out = append(out, u)
		}
	}
	t.k.failIf(len(out) != tablePartitions, "a route of %d partitions has %d", tablePartitions, len(out))
	return out
}
