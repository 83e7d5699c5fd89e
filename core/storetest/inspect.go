package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var inspectChecks = []named{
	{"inspect-shows-one", inspectShowsOne},
	{"list-pages-in-order", listPagesInOrder},
	{"list-filters", listFilters},
	{"list-keeps-its-budget", listKeepsItsBudget},
	{"ids-are-found-behind-others", idsAreFoundBehindOthers},
	{"list-refuses-bad-input", listRefusesBadInput},
	{"list-shows-what-cannot-be-read", listShowsWhatCannotBeRead},
}

func (k *kit) inspector() admin.Inspector { return capability[admin.Inspector](k) }

// inspect returns a record of the check's route.
func (k *kit) inspect(id string) admin.Stored {
	st, err := k.inspector().Inspect(k.ctx, k.route, id)
	k.must("inspect", err)
	return st
}

// mine is f on the check's route.
func (k *kit) mine(f admin.Filter) admin.Filter {
	f.Routes = []string{k.route}
	return f
}

// pages calls fn for one page after the other. fn returns after which sequence to go on, and 0 at the end.
func (k *kit) pages(what string, page admin.PageRequest, fn func(page admin.PageRequest) (next int64)) {
	for range maxSteps {
		next := fn(page)
		if next == 0 {
			return
		}
		k.failIf(next <= page.After, "%s after %d says to go on after %d", what, page.After, next)
		page.After = next
	}
	k.fail("%s does not come to an end", what)
}

// list returns the ids of all records of the check's route that f selects, page by page, and how many pages that took.
func (k *kit) list(f admin.Filter, p admin.PageRequest) (ids []string, pages int) {
	k.pages("list", p, func(p admin.PageRequest) int64 {
		l := k.page(k.mine(f), p)
		k.failIf(p.Limit > 0 && len(l.Records) > p.Limit, "a page of at most %d has %d records", p.Limit, len(l.Records))
		last := p.After
		for i := range l.Records {
			r := &l.Records[i]
			k.failIf(r.Route != k.route || r.Err != nil, "list of route %q returned one of %q, with error %v", k.route, r.Route, r.Err)
			k.failIf(len(r.Envelope.Body) > 0, "list returned a body")
			k.failIf(r.Seq <= last, "list after %d returned sequence %d", last, r.Seq)
			last = r.Seq
			ids = append(ids, r.Envelope.ID)
		}
		k.failIf(l.Next != 0 && l.Next < last, "list up to %d says to go on after %d, in page %d", last, l.Next, pages)
		pages++
		return l.Next
	})
	return ids, pages
}

// page returns one page of a list.
func (k *kit) page(f admin.Filter, p admin.PageRequest) admin.Listing {
	l, err := k.inspector().List(k.ctx, f, p)
	k.must("list", err)
	return l
}

// same fails unless got are the ids want, in this order. It names them by their numbers among all.
func (k *kit) same(what string, got, want, all []string) {
	k.failIf(!slices.Equal(got, want), "%s: got %s, want %s", what, suitetest.Names(got, all), suitetest.Names(want, all))
}

// abandonKept abandons ids, which are due, with reason. The store must keep such records.
func (k *kit) abandonKept(reason waybill.Reason, ids ...string) {
	k.abandon(reason, ids...)
	k.kept(ids[0])
}

// kept ends the check if the store does not keep abandoned records.
func (k *kit) kept(id string) {
	if rec, ok := k.stored(id); ok && rec == nil {
		k.undeclared("abandoned records are not kept")
	}
}

// A record is shown as it is: its envelope, state, counters, holder, due time, error and end. DB-11.
func inspectShowsOne(k *kit) {
	in := k.inspector()
	start := time.Now()
	m := k.msg(waybill.Key("k"), waybill.Tenant("t"), waybill.Header("h", "v"), waybill.Type("ty"), waybill.CorrelationID("c"))
	ids := k.stage(m, k.msg(waybill.Delay(far)))
	st := k.inspect(ids[0])
	e := &st.Envelope
	switch {
	case e.ID != m.ID || e.Topic != m.Topic || e.Key != "k" || e.Tenant != "t" || e.Headers["h"] != "v" || e.Type != "ty" ||
		e.CorrelationID != "c" || e.Time.IsZero():
		k.fail("the envelope of a record is not as staged: id %q topic %q key %q tenant %q type %q", e.ID, e.Topic, e.Key, e.Tenant, e.Type)
	case string(e.Body) != string(m.Body):
		k.fail("inspect did not return the body")
	case st.Route != k.route || st.Seq == 0 || st.State != core.StatePending || st.Reason != "" || st.Attempts+st.Crashes != 0:
		k.fail("a fresh record is %+v", st)
	case st.Age < 0 || st.Age > time.Since(start)+slack || st.DueIn != 0 || st.LeaseIn != 0 || st.Owner != "" || st.LastError != "" ||
		!st.LastErrorAt.IsZero() || !st.SettledAt.IsZero():
		k.fail("a fresh record is %+v", st)
	}
	st = k.inspect(ids[1])
	k.failIf(st.DueIn <= far-long || st.DueIn > far || st.Age >= 0,
		"a record that is scheduled in %s is due in %s and has the age %s", far, st.DueIn, st.Age)
	r := k.takeIDs(ids[:1])[0]
	held := k.inspect(ids[0])
	k.failIf(held.State != core.StateProcessing || held.LeaseIn <= 0 || held.LeaseIn > Timeout || held.Owner != "storetest",
		"a held record is %s for %s by %q", held.State, held.LeaseIn, held.Owner)
	k.sleep(4 * slack)
	later := k.inspect(ids[0]).LeaseIn
	k.failIf(later > held.LeaseIn-3*slack, "the lease of a member that gives no sign of life lasts %s, and %s after it %s", held.LeaseIn, 4*slack, later)
	k.retry(r, short)
	st = k.inspect(ids[0])
	k.failIf(st.State != core.StateFailed || st.Attempts != 1 || st.DueIn > short || st.LastError != errNo.Error() || st.LastErrorAt.IsZero() || st.Owner != "" || st.LeaseIn != 0,
		"a failed record is %+v", st)
	r = k.takeIDs(ids[:1])[0]
	k.settle(core.Abandon(&r, waybill.ReasonRejected, errNo))
	if rec, ok := k.stored(ids[0]); !ok || rec != nil {
		st := k.inspect(ids[0])
		k.failIf(st.State != core.StateAbandoned || st.Reason != waybill.ReasonRejected || st.Attempts != 2 || st.SettledAt.IsZero() || st.DueIn != 0,
			"an abandoned record is %+v", st)
	}
	for _, name := range []struct{ route, id string }{{k.route, "unknown"}, {"unknown", ids[1]}, {"", ""}} {
		_, err := in.Inspect(k.ctx, name.route, name.id)
		k.answers("inspect of a record that is not there", waybill.ErrNotFound, err)
	}
}

// Pages follow each other by sequence: each record once, in staging order, also while records come and go. DB-11.
func listPagesInOrder(k *kit) {
	k.inspector()
	ids := k.stage(k.msgs(25)...)
	got, _ := k.list(admin.Filter{}, admin.PageRequest{})
	k.same("listed", got, ids, ids)
	got, pages := k.list(admin.Filter{}, admin.PageRequest{Limit: 10})
	k.failIf(!slices.Equal(got, ids) || pages < 3, "listed %s of %d in %d pages of 10", suitetest.Names(got, ids), len(ids), pages)
	l := k.page(k.mine(admin.Filter{}), admin.PageRequest{Limit: 10})
	k.published(k.takeIDs(ids[:12])...)
	more := k.stage(k.msgs(2)...)
	want := append(slices.Clone(ids[12:]), more...)
	got, _ = k.list(admin.Filter{}, admin.PageRequest{Limit: 10, After: l.Next})
	k.same("the pages after the first, when 12 of 25 were published and 2 staged", got, want, append(ids, more...))
}

// Filters select by each field, and by all of them together. DB-11.
func listFilters(k *kit) {
	k.inspector()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	a := k.msg(waybill.Key("a"), waybill.Tenant("ta"), waybill.OccurredAt(at), onTopic("topic.a"))
	b := k.msg(waybill.Key("b"), waybill.Tenant("tb"), waybill.OccurredAt(at.Add(time.Second)), onTopic("topic.b"))
	ids := k.stage(a, b, k.msg(waybill.OccurredAt(at.Add(time.Hour)), waybill.Delay(far)))
	for _, r := range k.takeIDs(ids[:2]) {
		if r.ID == ids[0] {
			k.settle(core.Abandon(&r, waybill.ReasonTooLarge, errNo))
		} else {
			k.retry(r, far)
		}
	}
	k.kept(ids[0])
	for _, tc := range []struct {
		name string
		f    admin.Filter
		want []int
	}{
		{"nothing", admin.Filter{}, []int{0, 1, 2}},
		{"ids", admin.Filter{IDs: []string{ids[2], "unknown", ids[0]}}, []int{0, 2}},
		{"states", admin.Filter{States: []core.State{core.StateFailed, core.StatePending}}, []int{1, 2}},
		{"abandoned", admin.Filter{States: []core.State{core.StateAbandoned}}, []int{0}},
		{"reasons", admin.Filter{Reasons: []waybill.Reason{waybill.ReasonExpired, waybill.ReasonTooLarge}}, []int{0}},
		{"another reason", admin.Filter{Reasons: []waybill.Reason{waybill.ReasonExpired}}, nil},
		{"topics", admin.Filter{Topics: []string{"topic.b", k.topic}}, []int{1, 2}},
		{"tenants", admin.Filter{Tenants: []string{"ta", "tb"}}, []int{0, 1}},
		{"keys", admin.Filter{Keys: []string{"b"}}, []int{1}},
		{"no key", admin.Filter{Keys: []string{""}}, []int{2}},
		{"since", admin.Filter{Since: at.Add(time.Second)}, []int{1, 2}},
		{"until", admin.Filter{Until: at.Add(time.Second)}, []int{0}},
		{"a time", admin.Filter{Since: at, Until: at.Add(time.Microsecond)}, []int{0}},
		{"several", admin.Filter{States: []core.State{core.StateFailed}, Topics: []string{"topic.b"}, Keys: []string{"b"}}, []int{1}},
		{"several that exclude each other", admin.Filter{States: []core.State{core.StateFailed}, Keys: []string{"a"}}, nil},
	} {
		var want []string
		for _, i := range tc.want {
			want = append(want, ids[i])
		}
		got, _ := k.list(tc.f, admin.PageRequest{})
		k.same("a list by "+tc.name, got, want, ids)
	}
	// a page looks at a bounded number of rows, and the other checks have theirs in the same table
	found := 0
	k.pages("a list by ids on any route", admin.PageRequest{}, func(page admin.PageRequest) int64 {
		l := k.page(admin.Filter{IDs: ids}, page)
		found += len(l.Records)
		return l.Next
	})
	k.failIf(found != 3, "list by ids on any route returned %d of 3", found)
	l := k.page(admin.Filter{Routes: []string{"unknown"}, IDs: ids}, admin.PageRequest{})
	k.failIf(len(l.Records) > 0, "list of an unknown route returned %d records", len(l.Records))
}

// A list whose filter fits few looks at no more rows than it may, says where it got to, and finds the rest from
// there. DB-11.
func listKeepsItsBudget(k *kit) {
	k.inspector()
	ids := k.stage(append(k.msgs(30), k.msg(onTopic("topic.last")))...)
	f := k.mine(admin.Filter{Topics: []string{"topic.last"}})
	first := k.inspect(ids[0])
	l := k.page(f, admin.PageRequest{After: first.Seq - 1, Budget: 10})
	k.failIf(len(l.Records) > 0 || l.Next <= first.Seq,
		"a list with a budget of 10 rows returned %d records, though the only one is the 31st row; it says to go on after %d", len(l.Records), l.Next)
	got, pages := k.list(admin.Filter{Topics: f.Topics}, admin.PageRequest{After: first.Seq - 1, Budget: 10})
	k.failIf(!slices.Equal(got, ids[30:]) || pages < 4, "lists with a budget of 10 rows each found %s in %d pages", suitetest.Names(got, ids), pages)
}

// Ids that the producer left to the stager are found, behind any number of other records, with the smallest budget.
// DB-11.
func idsAreFoundBehindOthers(k *kit) {
	in := k.inspector()
	unnamed := func(n int, opts ...waybill.MessageOption) []string {
		msgs := make([]waybill.Message, n)
		for i := range msgs {
			msgs[i] = k.msg(opts...)
			msgs[i].ID = ""
		}
		return stagedIDs(k.stageNow(msgs...))
	}
	scheduled, due := unnamed(15, waybill.Delay(far)), unnamed(30)
	f := admin.Filter{IDs: []string{scheduled[3], due[0], due[29], waybill.NewID()}}
	want := []string{scheduled[3], due[0], due[29]}
	for _, budget := range []int{7, admin.DefaultPageBudget} {
		got, _ := k.list(f, admin.PageRequest{Budget: budget})
		k.same(fmt.Sprintf("lists by four ids, with a budget of %d rows each", budget), got, want, append(scheduled, due...))
	}
	for _, id := range want {
		st, err := in.Inspect(k.ctx, k.route, id)
		k.failIf(err != nil || st.Envelope.ID != id, "inspect of a record that waits behind others: id %q, error %v", st.Envelope.ID, err)
	}
}

// Bad input is refused with every problem. DB-11.
func listRefusesBadInput(k *kit) {
	for _, p := range []admin.PageRequest{
		{Limit: -1},
		{Limit: admin.MaxPageLimit + 1},
		{Budget: -1},
		{Budget: admin.MaxPageBudget + 1},
		{After: -1},
	} {
		_, err := k.inspector().List(k.ctx, k.mine(admin.Filter{}), p)
		k.answers(fmt.Sprintf("list with %+v", p), waybill.ErrInvalid, err)
	}
	_, err := k.inspector().List(k.ctx, k.mine(admin.Filter{States: []core.State{77}}), admin.PageRequest{})
	k.answers("list of a state that does not exist", waybill.ErrInvalid, err)
}

// A row that cannot be read is listed with its readable parts and an error. It hides no other record, and can be
// redriven. DB-11 DB-12.
func listShowsWhatCannotBeRead(k *kit) {
	k.inspector()
	co := needs[Corrupter](k, k.h)
	ids := k.stage(k.msg(waybill.Tenant("t")), k.msg(waybill.Tenant("t")))
	k.abandonKept(waybill.ReasonUndecodable, ids...)
	k.must("corrupt", co.Corrupt(k.ctx, k.route, k.inspect(ids[0]).Seq))
	st := k.inspect(ids[0])
	k.failIf(st.Err == nil || st.Envelope.ID != ids[0], "inspect of a row that cannot be read: id %q, error %v", st.Envelope.ID, st.Err)
	for _, f := range []admin.Filter{{}, {IDs: ids}, {Reasons: []waybill.Reason{waybill.ReasonUndecodable}}} {
		l := k.page(k.mine(f), admin.PageRequest{})
		k.failIf(len(l.Records) != 2 || l.Records[0].Err == nil || l.Records[1].Err != nil,
			"list of two rows, the first one unreadable, by %+v: %+v", f, l.Records)
	}
	k.page(k.mine(admin.Filter{Tenants: []string{"t"}}), admin.PageRequest{}) // it does not stumble
	if _, ok := core.As[admin.Redriver](k.store); ok {
		k.redriven("a row that cannot be read, and another", admin.RedriveRequest{}, 2, nil)
	}
}
