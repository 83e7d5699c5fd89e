package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

var opsChecks = []named{
	{"inspect-shows-one", inspectShowsOne},
	{"list-pages-in-order", listPagesInOrder},
	{"list-filters", listFilters},
	{"list-keeps-its-budget", listKeepsItsBudget},
	{"list-refuses-bad-input", listRefusesBadInput},
	{"list-shows-what-cannot-be-read", listShowsWhatCannotBeRead},
	{"redrive-puts-back", redrivePutsBack},
	{"redrive-wakes", redriveWakes},
	{"redrive-goes-in-steps", redriveGoesInSteps},
	{"redrive-filters", redriveFilters},
	{"redrive-dry-run-changes-nothing", redriveDryRunChangesNothing},
	{"redrive-refuses-expired", redriveRefusesExpired},
	{"redrive-refuses-beyond-horizon", redriveRefusesBeyondHorizon},
	{"redrive-refuses-out-of-order", redriveRefusesOutOfOrder},
	{"redrive-asks-for-all", redriveAsksForAll},
	{"redrive-takes-no-leased", redriveTakesNoLeased},
	{"redrive-minds-dedupe-keys", redriveMindsDedupeKeys},
	{"redrive-remembers-maybe-sent", redriveRemembersMaybeSent},
}

func (k *kit) inspector() core.Inspector {
	in, ok := core.As[core.Inspector](k.store)
	if !ok {
		k.undeclared("core.Inspector")
	}
	return in
}

func (k *kit) redriver() core.Redriver {
	r, ok := core.As[core.Redriver](k.store)
	if !ok {
		k.undeclared("core.Redriver")
	}
	return r
}

// inspect returns a record of the check's route.
func (k *kit) inspect(id string) core.Stored {
	st, err := k.inspector().Inspect(k.ctx, k.route, id)
	k.must("inspect", err)
	return st
}

// mine is f on the check's route.
func (k *kit) mine(f core.Filter) core.Filter {
	f.Routes = []string{k.route}
	return f
}

// list returns the ids of all records of the check's route that f selects, page by page, and how many pages that took.
func (k *kit) list(f core.Filter, p core.Page) (ids []string, pages int) {
	for {
		l, err := k.inspector().List(k.ctx, k.mine(f), p)
		k.must("list", err)
		if p.Limit > 0 && len(l.Records) > p.Limit {
			k.fail("a page of at most %d has %d records", p.Limit, len(l.Records))
		}
		for i := range l.Records {
			r := &l.Records[i]
			if r.Route != k.route || r.Err != nil {
				k.fail("list of route %q returned one of %q, with error %v", k.route, r.Route, r.Err)
			}
			if len(r.Envelope.Body) > 0 {
				k.fail("list returned a body")
			}
			if r.Seq <= p.After {
				k.fail("list after %d returned sequence %d", p.After, r.Seq)
			}
			p.After = r.Seq
			ids = append(ids, r.Envelope.ID)
		}
		pages++
		if l.Next == 0 {
			return ids, pages
		}
		if l.Next < p.After || len(l.Records) == 0 && l.Next == p.After || pages > 10_000 {
			k.fail("list after %d says to go on after %d, in page %d", p.After, l.Next, pages)
		}
		p.After = l.Next
	}
}

// redrive runs req on the check's route to the end and returns the sums.
func (k *kit) redrive(req core.RedriveRequest) core.Redriven {
	req.Filter = k.mine(req.Filter)
	var sum core.Redriven
	for range 10_000 {
		got, err := k.redriver().Redrive(k.ctx, req)
		k.must("redrive", err)
		refused := 0
		for cause, n := range got.Refused {
			if sum.Refused == nil {
				sum.Refused = map[string]int{}
			}
			sum.Refused[cause] += n
			refused += n
		}
		if got.Matched != got.Changed+refused {
			k.fail("redrive: %d matched, but %d changed and %d refused", got.Matched, got.Changed, refused)
		}
		if req.Page.Limit > 0 && got.Matched > req.Page.Limit {
			k.fail("one step of at most %d matched %d", req.Page.Limit, got.Matched)
		}
		sum.Matched, sum.Changed = sum.Matched+got.Matched, sum.Changed+got.Changed
		if got.Next == 0 {
			return sum
		}
		if got.Next <= req.Page.After {
			k.fail("redrive after %d says to go on after %d", req.Page.After, got.Next)
		}
		req.Page.After = got.Next
	}
	k.fail("redrive does not come to an end")
	return sum
}

// redriven is redrive, and it must count so.
func (k *kit) redriven(why string, req core.RedriveRequest, changed int, refused map[string]int) {
	got := k.redrive(req)
	same := len(got.Refused) == len(refused)
	for cause, n := range refused {
		same = same && got.Refused[cause] == n
	}
	if got.Changed != changed || !same {
		k.fail("redrive of %s: changed %d and refused %v, want %d and %v", why, got.Changed, got.Refused, changed, refused)
	}
}

// giveUp claims ids, which are due, and abandons them with reason. The store must keep such records.
func (k *kit) giveUp(reason core.Reason, ids ...string) {
	k.abandon(reason, ids...)
	k.kept(ids[0])
}

// kept ends the check if the store does not keep abandoned records.
func (k *kit) kept(id string) {
	if rec, ok := k.stored(id); ok && rec == nil {
		k.undeclared("abandoned records are not kept")
	}
}

// A record is shown as it is: its envelope, state, counters, who holds it, when it is due, its error and end. DB-11.
func inspectShowsOne(k *kit) {
	in := k.inspector()
	m := k.msg(core.Key("k"), core.Tenant("t"), core.Header("h", "v"), core.Type("ty"), core.CorrelationID("c"))
	ids := k.stage(m, k.msg(core.Delay(far)))
	st := k.inspect(ids[0])
	e := &st.Envelope
	switch {
	case e.ID != m.ID || e.Topic != m.Topic || e.Key != "k" || e.Tenant != "t" || e.Headers["h"] != "v" || e.Type != "ty" || e.CorrelationID != "c" || e.Time.IsZero():
		k.fail("the envelope of a record is not as staged: id %q topic %q key %q tenant %q type %q", e.ID, e.Topic, e.Key, e.Tenant, e.Type)
	case string(e.Body) != string(m.Body):
		k.fail("inspect did not return the body")
	case st.Route != k.route || st.Seq == 0 || st.State != core.StatePending || st.Reason != "" || st.Attempts+st.Crashes != 0:
		k.fail("a fresh record is %+v", st)
	case st.Age < 0 || st.Age > long || st.DueIn != 0 || st.LeaseIn != 0 || st.Owner != "" || st.LastError != "" || !st.LastErrorAt.IsZero() || !st.SettledAt.IsZero():
		k.fail("a fresh record is %+v", st)
	}
	if st := k.inspect(ids[1]); st.DueIn <= far-long || st.DueIn > far || st.Age >= 0 {
		k.fail("a record that is scheduled in %s is due in %s and has the age %s", far, st.DueIn, st.Age)
	}
	r := k.takeIDs(ids[:1])[0]
	if st := k.inspect(ids[0]); st.State != core.StateProcessing || st.LeaseIn <= 0 || st.LeaseIn > long || st.Owner != "storetest" && st.Owner != "" {
		k.fail("a leased record is %s for %s by %q", st.State, st.LeaseIn, st.Owner)
	}
	k.settle(core.Retry(&r, errNo, short))
	if st := k.inspect(ids[0]); st.State != core.StateFailed || st.Attempts != 1 || st.DueIn > short || st.LastError != errNo.Error() || st.LastErrorAt.IsZero() || st.Owner != "" || st.LeaseIn != 0 {
		k.fail("a failed record is %+v", st)
	}
	r = k.takeIDs(ids[:1])[0]
	k.settle(core.Abandon(&r, core.ReasonRejected, errNo))
	if rec, ok := k.stored(ids[0]); !ok || rec != nil {
		if st := k.inspect(ids[0]); st.State != core.StateAbandoned || st.Reason != core.ReasonRejected || st.Attempts != 2 || st.SettledAt.IsZero() || st.DueIn != 0 {
			k.fail("an abandoned record is %+v", st)
		}
	}
	for _, name := range []struct{ route, id string }{{k.route, "unknown"}, {"unknown", ids[1]}, {"", ""}} {
		if _, err := in.Inspect(k.ctx, name.route, name.id); !errors.Is(err, core.ErrNotFound) {
			k.fail("inspect of a record that is not there: %v, want core.ErrNotFound", err)
		}
	}
}

// Pages follow each other by sequence: each record once, in staging order, also while records come and go. DB-11.
func listPagesInOrder(k *kit) {
	k.inspector()
	ids := k.stage(k.msgs(25)...)
	if got, _ := k.list(core.Filter{}, core.Page{}); !slices.Equal(got, ids) {
		k.fail("listed %s of %d", names(got, ids), len(ids))
	}
	got, pages := k.list(core.Filter{}, core.Page{Limit: 10})
	if !slices.Equal(got, ids) || pages < 3 {
		k.fail("listed %s of %d in %d pages of 10", names(got, ids), len(ids), pages)
	}
	l, err := k.inspector().List(k.ctx, k.mine(core.Filter{}), core.Page{Limit: 10})
	k.must("list", err)
	k.published(k.takeIDs(ids[:12])...)
	more := k.stage(k.msgs(2)...)
	want := append(slices.Clone(ids[12:]), more...)
	if got, _ := k.list(core.Filter{}, core.Page{Limit: 10, After: l.Next}); !slices.Equal(got, want) {
		k.fail("after 12 of 25 were published and 2 staged, the pages after the first have %s", names(got, append(ids, more...)))
	}
}

// Filters select by each field, and by all of them together. DB-11.
func listFilters(k *kit) {
	k.inspector()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	a := k.msg(core.Key("a"), core.Tenant("ta"), core.OccurredAt(at))
	a.Topic = "topic.a"
	b := k.msg(core.Key("b"), core.Tenant("tb"), core.OccurredAt(at.Add(time.Second)))
	b.Topic = "topic.b"
	ids := k.stage(a, b, k.msg(core.OccurredAt(at.Add(time.Hour)), core.Delay(far)))
	for _, r := range k.takeIDs(ids[:2]) {
		if r.Envelope.ID == ids[0] {
			k.settle(core.Abandon(&r, core.ReasonTooLarge, errNo))
		} else {
			k.settle(core.Retry(&r, errNo, far))
		}
	}
	k.kept(ids[0])
	for _, tc := range []struct {
		name string
		f    core.Filter
		want []int
	}{
		{"nothing", core.Filter{}, []int{0, 1, 2}},
		{"ids", core.Filter{IDs: []string{ids[2], "unknown", ids[0]}}, []int{0, 2}},
		{"states", core.Filter{States: []core.State{core.StateFailed, core.StatePending}}, []int{1, 2}},
		{"abandoned", core.Filter{States: []core.State{core.StateAbandoned}}, []int{0}},
		{"reasons", core.Filter{Reasons: []core.Reason{core.ReasonExpired, core.ReasonTooLarge}}, []int{0}},
		{"another reason", core.Filter{Reasons: []core.Reason{core.ReasonExpired}}, nil},
		{"topics", core.Filter{Topics: []string{"topic.b", k.topic}}, []int{1, 2}},
		{"tenants", core.Filter{Tenants: []string{"ta", "tb"}}, []int{0, 1}},
		{"keys", core.Filter{Keys: []string{"b"}}, []int{1}},
		{"no key", core.Filter{Keys: []string{""}}, []int{2}},
		{"since", core.Filter{Since: at.Add(time.Second)}, []int{1, 2}},
		{"until", core.Filter{Until: at.Add(time.Second)}, []int{0}},
		{"a time", core.Filter{Since: at, Until: at.Add(time.Microsecond)}, []int{0}},
		{"several", core.Filter{States: []core.State{core.StateFailed}, Topics: []string{"topic.b"}, Keys: []string{"b"}}, []int{1}},
		{"several that exclude each other", core.Filter{States: []core.State{core.StateFailed}, Keys: []string{"a"}}, nil},
	} {
		var want []string
		for _, i := range tc.want {
			want = append(want, ids[i])
		}
		if got, _ := k.list(tc.f, core.Page{}); !slices.Equal(got, want) {
			k.fail("list by %s returned %s, want %v", tc.name, names(got, ids), tc.want)
		}
	}
	if l, err := k.inspector().List(k.ctx, core.Filter{IDs: ids}, core.Page{}); err != nil || len(l.Records) != 3 {
		k.fail("list by ids on whatever route returned %d of 3, %v", len(l.Records), err)
	}
	if l, err := k.inspector().List(k.ctx, core.Filter{Routes: []string{"unknown"}, IDs: ids}, core.Page{}); err != nil || len(l.Records) > 0 {
		k.fail("list of an unknown route returned %d records, %v", len(l.Records), err)
	}
}

// A list whose filter fits few looks at no more rows than it may, says where it got to, and finds the rest from
// there. DB-11.
func listKeepsItsBudget(k *kit) {
	in := k.inspector()
	last := k.msg()
	last.Topic = "topic.last"
	ids := k.stage(append(k.msgs(30), last)...)
	f := k.mine(core.Filter{Topics: []string{"topic.last"}})
	first := k.inspect(ids[0])
	l, err := in.List(k.ctx, f, core.Page{After: first.Seq - 1, Budget: 10})
	k.must("list", err)
	if len(l.Records) > 0 || l.Next <= first.Seq {
		k.fail("a list that may look at 10 rows returned %d records, of which the only one is the 31st; it says to go on after %d", len(l.Records), l.Next)
	}
	got, pages := k.list(core.Filter{Topics: f.Topics}, core.Page{After: first.Seq - 1, Budget: 10})
	if !slices.Equal(got, ids[30:]) || pages < 4 {
		k.fail("lists that may look at 10 rows each found %s in %d pages", names(got, ids), pages)
	}
}

// Bad input is refused with every problem. DB-11.
func listRefusesBadInput(k *kit) {
	for _, p := range []core.Page{{Limit: -1}, {Limit: core.MaxPageLimit + 1}, {Budget: -1}, {Budget: core.MaxPageBudget + 1}, {After: -1}} {
		if _, err := k.inspector().List(k.ctx, k.mine(core.Filter{}), p); !errors.Is(err, core.ErrInvalid) {
			k.fail("list with %+v: %v, want core.ErrInvalid", p, err)
		}
	}
	if _, err := k.inspector().List(k.ctx, k.mine(core.Filter{States: []core.State{77}}), core.Page{}); !errors.Is(err, core.ErrInvalid) {
		k.fail("list of a state that does not exist: %v, want core.ErrInvalid", err)
	}
}

// A row that cannot be read is listed with what can, and an error; it hides no others, and can be redriven. DB-11 DB-12.
func listShowsWhatCannotBeRead(k *kit) {
	k.inspector()
	co, ok := core.As[Corrupter](k.h)
	if !ok {
		k.undeclared("Corrupter")
	}
	ids := k.stage(k.msg(core.Tenant("t")), k.msg(core.Tenant("t")))
	k.giveUp(core.ReasonUndecodable, ids...)
	k.must("corrupt", co.Corrupt(k.ctx, k.route, k.inspect(ids[0]).Seq))
	if st := k.inspect(ids[0]); st.Err == nil || st.Envelope.ID != ids[0] {
		k.fail("inspect of a row that cannot be read: id %q, error %v", st.Envelope.ID, st.Err)
	}
	for _, f := range []core.Filter{{}, {IDs: ids}, {Reasons: []core.Reason{core.ReasonUndecodable}}} {
		l, err := k.inspector().List(k.ctx, k.mine(f), core.Page{})
		k.must("list", err)
		if len(l.Records) != 2 || l.Records[0].Err == nil || l.Records[1].Err != nil {
			k.fail("list of two rows, of which the first cannot be read, by %+v: %+v", f, l.Records)
		}
	}
	if _, err := k.inspector().List(k.ctx, k.mine(core.Filter{Tenants: []string{"t"}}), core.Page{}); err != nil {
		k.fail("list by tenant stumbles over a row that cannot be read: %v", err)
	}
	if _, ok := core.As[core.Redriver](k.store); ok {
		k.redriven("a row that cannot be read, and another", core.RedriveRequest{}, 2, nil)
	}
}

// Failed and abandoned records become pending and due at once, with attempts, crashes, reason and error reset, and are
// found although claims have long gone past them; others stay as they are. DB-12.
func redrivePutsBack(k *kit) {
	k.redriver()
	ids := k.stage(k.msgs(3)...)
	k.giveUp(core.ReasonRejected, ids[0])
	k.settle(core.Retry(&k.takeIDs(ids[1:2])[0], errNo, far))
	k.settle(core.Release(&k.takeIDs(ids[2:])[0], far))
	k.pass(50)
	k.redriven("one abandoned and one failed record", core.RedriveRequest{}, 2, nil)
	for _, id := range ids[:2] {
		k.state("redriven", id, StoredRecord{State: core.StatePending})
	}
	for _, r := range k.takeIDs(ids[:2]) {
		if r.Attempts != 0 || r.Crashes != 0 || r.Failed {
			k.fail("a redriven record has %d attempts, %d crashes, failed: %v", r.Attempts, r.Crashes, r.Failed)
		}
		k.published(r)
	}
	k.none("the third one waits, and was not redriven")
	k.redriven("nothing", core.RedriveRequest{}, 0, nil)
}

// pass lets claims go on: it stages n messages and publishes them.
func (k *kit) pass(n int) { k.drainIDs(k.stage(k.msgs(n)...)) }

// A relay that sleeps wakes up for what is redriven. DB-12 DB-10.
func redriveWakes(k *kit) {
	k.redriver()
	k.waiter()
	ids := k.stage(k.msg())
	k.giveUp(core.ReasonRejected, ids...)
	k.none("it is abandoned")
	done := k.wait(k.ctx, far)
	k.redriven("one", core.RedriveRequest{}, 1, nil)
	k.woken(done, soon, "after a redrive")
	k.takeIDs(ids)
}

// A redrive does what one page allows and goes on where it stopped. DB-12.
func redriveGoesInSteps(k *kit) {
	k.redriver()
	ids := k.stage(k.msgs(7)...)
	k.giveUp(core.ReasonForbidden, ids...)
	req := core.RedriveRequest{Filter: k.mine(core.Filter{Reasons: []core.Reason{core.ReasonForbidden}}), Page: core.Page{Limit: 3}}
	got, err := k.redriver().Redrive(k.ctx, req)
	k.must("redrive", err)
	if got.Changed != 3 || got.Next == 0 {
		k.fail("a step of 3 of 7 changed %d and says to go on after %d", got.Changed, got.Next)
	}
	k.drainIDs(ids[:3])
	k.none("the other four are abandoned")
	req.Page.After = got.Next
	k.redriven("the rest", req, 4, nil)
	k.drainIDs(ids[3:])
}

// A redrive takes what its filter selects, and nothing else. DB-12.
func redriveFilters(k *kit) {
	k.redriver()
	at := time.Now().Add(-time.Minute).Truncate(time.Second)
	var msgs []core.Message
	for i, tenant := range []string{"x", "y", "z", "w", "v"} {
		m := k.msg(core.Tenant(tenant), core.OccurredAt(at.Add(time.Duration(i)*time.Second)))
		m.Topic = "topic." + tenant
		msgs = append(msgs, m)
	}
	ids := k.stage(msgs...)
	rs := k.takeIDs(ids)
	for i := range rs {
		reason := core.ReasonRejected
		if i == 4 {
			reason = core.ReasonTooLarge
		}
		k.settle(core.Abandon(&rs[i], reason, errNo))
	}
	k.kept(ids[0])
	for i, f := range []core.Filter{
		{IDs: ids[:1]},
		{Topics: []string{"topic.y"}},
		{Tenants: []string{"z"}},
		{Since: at.Add(3 * time.Second), Until: at.Add(4 * time.Second)},
		{Reasons: []core.Reason{core.ReasonTooLarge}},
	} {
		k.redriven("one of five", core.RedriveRequest{Filter: f}, 1, nil)
		k.drainIDs(ids[i : i+1])
	}
}

// A dry run counts and changes nothing. DB-12.
func redriveDryRunChangesNothing(k *kit) {
	k.redriver()
	ids := k.stage(k.msgs(2)...)
	k.giveUp(core.ReasonRejected, ids...)
	for range 2 {
		k.redriven("two in a dry run", core.RedriveRequest{DryRun: true}, 2, nil)
	}
	k.none("the redrive was a dry run")
	k.state("after a dry run", ids[0], StoredRecord{State: core.StateAbandoned, Attempts: 1, Reason: core.ReasonRejected, LastError: errNo.Error()})
	if _, err := k.redriver().Redrive(k.ctx, core.RedriveRequest{All: true, DryRun: true}); err != nil {
		k.fail("a dry run of all: %v", err)
	}
	k.redriven("the same two", core.RedriveRequest{}, 2, nil)
}

// What has expired is put back only with Force, and without its expiry. DB-12 ST-11.
func redriveRefusesExpired(k *kit) {
	k.redriver()
	ids := k.stage(k.msg(core.TTL(short)), k.msg(core.TTL(far)))
	k.giveUp(core.ReasonRejected, ids...)
	k.expire(short)
	expired := map[string]int{core.RefusedExpired: 1}
	k.redriven("two, of which one has expired, in a dry run", core.RedriveRequest{DryRun: true}, 1, expired)
	k.redriven("two, of which one has expired", core.RedriveRequest{}, 1, expired)
	k.drainIDs(ids[1:])
	k.redriven("an expired one by force", core.RedriveRequest{Force: true}, 1, nil)
	if r := k.takeIDs(ids[:1])[0]; !r.Envelope.Expires.IsZero() {
		k.fail("an expired record was redriven by force and expires %s", r.Envelope.Expires)
	}
}

// What is older than the inbox remembers is put back only with Force. DB-12.
func redriveRefusesBeyondHorizon(k *kit) {
	k.redriver()
	ids := k.stage(k.msg())
	k.giveUp(core.ReasonRejected, ids...)
	k.expire(short)
	k.redriven("one that is older than the horizon", core.RedriveRequest{Horizon: short}, 0, map[string]int{core.RefusedHorizon: 1})
	k.none("it was refused")
	k.redriven("one that is younger", core.RedriveRequest{Horizon: far}, 1, nil)
	k.giveUp(core.ReasonRejected, ids...)
	k.redriven("one by force", core.RedriveRequest{Horizon: short, Force: true}, 1, nil)
	k.takeIDs(ids)
}

// What may stand behind later messages of its key, which were published, is put back only with Force; unless the key was
// blocked. A failed record still holds its key. DB-12.
func redriveRefusesOutOfOrder(k *kit) {
	k.redriver()
	k.keyed()
	ids := k.keys(2, "a")["a"]
	k.giveUp(core.ReasonRejected, ids[0])
	k.drainIDs(ids[1:])
	order := map[string]int{core.RefusedOrder: 1}
	k.redriven("one whose key went on", core.RedriveRequest{}, 0, order)
	k.none("it was refused")
	k.redriven("one by force", core.RedriveRequest{Force: true}, 1, nil)
	k.drainIDs(ids[:1])

	blocked := k.keys(3, "b")["b"]
	k.settle(core.Abandon(&k.takeIDs(blocked[:1], blocks, limit(1))[0], core.ReasonRejected, errNo))
	k.redriven("one whose key is blocked, in a dry run", core.RedriveRequest{BlockAfterAbandon: true, DryRun: true}, 1, nil)
	k.redriven("one whose key is blocked", core.RedriveRequest{BlockAfterAbandon: true}, 1, nil)
	k.drainIDs(blocked, blocks)

	failed := k.keys(2, "c")["c"]
	k.settle(core.Retry(&k.takeIDs(failed[:1], limit(1))[0], errNo, far))
	k.redriven("a failed one", core.RedriveRequest{}, 1, nil)
	k.drainIDs(failed)
}

// An empty filter is refused unless all are meant; states that cannot be redriven are too. DB-12.
func redriveAsksForAll(k *kit) {
	for _, req := range []core.RedriveRequest{
		{},
		{DryRun: true},
		{All: true, Page: core.Page{Limit: -1}},
		{All: true, DryRun: true, Horizon: -1},
		{Filter: k.mine(core.Filter{States: []core.State{core.StatePending}})},
	} {
		_, err := k.redriver().Redrive(k.ctx, req)
		var invalid *core.InvalidError
		if !errors.As(err, &invalid) {
			k.fail("redrive %+v: %v, want a *core.InvalidError", req, err)
		}
	}
}

// Leased and pending records are left alone, whatever names them. DB-12.
func redriveTakesNoLeased(k *kit) {
	k.redriver()
	ids := k.stage(k.msgs(2)...)
	r := k.takeIDs(ids[:1], limit(1))[0]
	k.redriven("a leased and a pending one", core.RedriveRequest{Filter: core.Filter{IDs: ids}, Force: true}, 0, nil)
	k.published(r)
	k.drainIDs(ids[1:])
}

// A record is not put back beside a live one with its dedupe key, whatever the force; of several that were given up, one
// is. It then stands for the key again. DB-12 ST-08.
func redriveMindsDedupeKeys(k *kit) {
	k.redriver()
	k.canCancel()
	var ids []string
	for range 2 {
		ids = append(ids, k.stage(k.msg(core.DedupeKey("d")))...)
		k.giveUp(core.ReasonRejected, ids[len(ids)-1])
	}
	if k.inspect(ids[0]).DedupeKey != "d" {
		k.fail("inspect does not show the dedupe key")
	}
	live := k.stage(k.msg(core.DedupeKey("d")))
	refused := map[string]int{core.RefusedDuplicate: 2}
	k.redriven("two for which a third one stands", core.RedriveRequest{}, 0, refused)
	k.redriven("two for which a third one stands, by force", core.RedriveRequest{Force: true}, 0, refused)
	k.drainIDs(live)
	one := map[string]int{core.RefusedDuplicate: 1}
	k.redriven("two with one dedupe key, in a dry run", core.RedriveRequest{DryRun: true}, 1, one)
	k.redriven("two with one dedupe key", core.RedriveRequest{}, 1, one)
	if s := k.stageNow(k.msg(core.DedupeKey("d")))[0]; !s.Duplicate || s.ID != ids[0] {
		k.fail("staging the dedupe key of a redriven message answered %+v, want a duplicate of it", s)
	}
	k.drainIDs(ids[:1])
}

// What may have been delivered before it was given up is known as such after it was put back. DB-12 ST-09.
func redriveRemembersMaybeSent(k *kit) {
	k.redriver()
	k.canCancel()
	ids := k.stage(k.msg())
	k.crash(1)
	k.giveUp(core.ReasonCrashed, ids...)
	k.redriven("one of which a relay had died", core.RedriveRequest{}, 1, nil)
	k.cancel("after a redrive", core.CancelMaybe, k.byID(ids[0]))
}
