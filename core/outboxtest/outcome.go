package outboxtest

import (
	"errors"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var outcomeChecks = []named{
	{"published-does-not-come-again", publishedDoesNotComeAgain},
	{"retry-counts-and-waits", retryCountsAndWaits},
	{"retry-without-attempt", retryWithoutAttempt},
	{"retry-keeps-last-error", retryKeepsLastError},
	{"abandoned-is-terminal", abandonedIsTerminal},
	{"cancelled-counts-nothing", cancelledCountsNothing},
	{"release-costs-nothing", releaseCostsNothing},
	{"released-retry-waits-on", releasedRetryWaitsOn},
}

// Without this a message that the broker confirmed is published again. DB-01.
func publishedDoesNotComeAgain(k *kit) {
	m := k.owner(1)
	rs := m.some(5, key("k"))
	m.hold(rs[1].Ref)
	m.settle(core.Published(&rs[0]), core.Published(&rs[1]), core.Published(&rs[3]))
	m.gone("it was published", rs[0].Ref, rs[1].Ref, rs[3].Ref)
	k.same("ready, after three of five were published", ids(m.ready()), []string{rs[2].ID, rs[4].ID}, ids(rs))
	m.dueIs("three of five were published", 0, 0)
}

// Without this a message that the broker refuses is tried without a pause, or without an end. DB-01 DB-18.
func retryCountsAndWaits(k *kit) {
	m := k.owner(1)
	r := m.one(key("k"))
	for attempt := 1; attempt <= 3; attempt++ {
		r = m.triedAgain("a failed attempt", core.Retry(&r, errNo, short), attempt)
	}
}

// triedAgain settles a failure, after which the record is due in a short while with so many attempts. It returns it.
func (m *member) triedAgain(what string, o core.Outcome, attempts int) core.Record {
	k, ref, before := m.k, o.Ref(), m.k.now()
	m.settle(o)
	m.retrying(ref)
	k.stored(what, ref.ID, Stored{State: core.StateFailed, Attempts: attempts, LastError: errNo.Error()})
	r := m.dueAll(1, 0)[0]
	d := k.now().Sub(before)
	k.failIf(d < short-k.slack(), "%s: a record that waits for %s was due after %s", what, short, d)
	k.failIf(r.ID != ref.ID || r.Seq != ref.Seq || !r.Failed, "%s: the retry is %+v, want sequence %d, failed", what, r, ref.Seq)
	k.counted(what, r, attempts, 0)
	return r
}

// Without this an outage uses up the attempts of a message, or ends its wait at once. CO-05.
func retryWithoutAttempt(k *kit) {
	m := k.owner(1)
	r := m.one(key("k"))
	for attempts := range 3 {
		r = m.triedAgain("a retry without an attempt", core.Retry(&r, errNo, short).WithoutAttempt(), attempts)
		m.settle(core.Retry(&r, errNo, 0))
		r = m.dueAll(1, 0)[0]
	}
}

// Without this no operator can see why a message failed. DB-18.
func retryKeepsLastError(k *kit) {
	m := k.owner(1)
	r := m.one()
	long := strings.Repeat("ü", core.MaxErrorBytes)
	for i, e := range []struct {
		err  error
		want string
	}{{errNo, errNo.Error()}, {nil, errNo.Error()}, {
		errors.New("it said\x00 'no' again"),
		core.ErrorText(errors.New("it said\x00 'no' again")),
	}, {errors.New(long), core.ErrorText(errors.New(long))}} {
		m.settle(core.Retry(&r, e.err, 0))
		k.stored("after a failed attempt", r.ID, Stored{State: core.StateFailed, Attempts: i + 1, LastError: e.want})
		r = m.dueAll(1, 0)[0]
	}
}

// Without this a message that was given up is published, or its counts are wrong. DB-01.
func abandonedIsTerminal(k *kit) {
	m := k.owner(1)
	for reason, attempts := range map[waybill.Reason]int{
		waybill.ReasonRejected: 1, waybill.ReasonAttempts: 1, waybill.ReasonUndecodable: 1,
		waybill.ReasonCrashed: 0, waybill.ReasonExpired: 0, "an_adapter's_own": 1,
	} {
		r := m.one(key("k"))
		m.hold(r.Ref)
		m.settle(core.Abandon(&r, reason, errNo))
		m.gone("it was abandoned", r.Ref)
		k.stored("it was abandoned", r.ID, Stored{State: core.StateAbandoned, Attempts: attempts, Reason: reason, LastError: errNo.Error()})
	}
	m.retries(1, 0)
	r := m.dueAll(1, 0)[0]
	m.settle(core.Abandon(&r, waybill.ReasonAttempts, nil))
	k.stored("it was abandoned after a retry", r.ID,
		Stored{State: core.StateAbandoned, Attempts: 2, Reason: waybill.ReasonAttempts, LastError: errNo.Error()})
	m.nothingDue("all was abandoned")
}

// Without this an operator's decision looks like a failed attempt, or keeps its key, or a message that replaces the one
// that was put away is dropped as a duplicate.
func cancelledCountsNothing(k *kit) {
	m := k.owner(1)
	k.stage(k.row(key("k"), dedupe("d")))
	r := m.ready()[0]
	m.settle(core.Cancel(&r, waybill.ReasonSkipped))
	m.gone("it was cancelled", r.Ref)
	k.stored("it was cancelled", r.ID, Stored{State: core.StateAbandoned, Reason: waybill.ReasonSkipped})
	waiting := m.retries(1, far, key("k"))[0]
	waiting.Version = m.version(waiting.Ref)
	m.settle(core.Cancel(&waiting, waybill.ReasonSetAside))
	m.gone("it was cancelled while it waited", waiting.Ref)
	k.stored("it was cancelled while it waited", waiting.ID,
		Stored{State: core.StateAbandoned, Attempts: 1, Reason: waybill.ReasonSetAside, LastError: errNo.Error()})
	p := m.read(core.ReadRequest{Keys: k.ofKey("k", 10), BlockingRoutes: []string{k.route}, BlockingLimit: 10})
	k.expectWaiting("of a key, all of it cancelled", p.Keys[0].Blocking)
	m.nothingDue("all was cancelled")
	m.find(k.stage(k.row(key("k"), dedupe("d")))...)
}

// Without this a stop of a process or an outage of the broker uses up the attempts of a message. DB-01.
func releaseCostsNothing(k *kit) {
	m := k.owner(1)
	r := m.one()
	for _, unknown := range []bool{false, true} {
		m.next(1)
		m.settle(core.Release(&r, 0, unknown))
		r = m.released("it was handed back", &r)
		k.stored("it was released", r.ID, Stored{State: core.StatePending})
	}
	taken := k.join(1).nextIs(r.ID)
	k.failIf(taken.Ref != r.Ref, "a record was released as %+v, and another member takes it as %+v", r.Ref, taken.Ref)
}

// Without this a retry that was handed back is lost, or its back-off, or its count of attempts.
func releasedRetryWaitsOn(k *kit) {
	m := k.owner(1)
	want := m.retries(1, 0, key("k"))[0]
	r := m.dueAll(1, 0)[0]
	m.settle(core.Release(&r, 0, false))
	m.retrying(r.Ref)
	r = m.dueAll(1, 0)[0]
	k.stored("a retry was released", r.ID, Stored{State: core.StateFailed, Attempts: 1, LastError: errNo.Error()})
	k.failIf(r.ID != want.ID || r.Seq != want.Seq, "a retry was released, and its number is %d after %d", r.Seq, want.Seq)
	r = m.triedAgain("a retry was released", core.Release(&r, short, false), 1)
	k.stage(k.row(key("k"))) // its hold has ended: others may have it
	m.settle(core.Release(&r, far, false))
	m.dueLater("a retry was released for an hour", far/2, far)
}
