package admin

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// DB-11 DB-12 OR-05: bad input gets one clear answer each.
func TestOperatorInputIsChecked(t *testing.T) {
	t.Parallel()
	now := time.Now()
	redrive := func(r RedriveRequest) error {
		_, err := CheckRedrive(r, waybill.Limits{MaxMessageBytes: 3})
		return err
	}
	list := func(f Filter, p PageRequest) error {
		_, err := CheckList(&f, p)
		return err
	}
	_, blocked := CheckBlockedKeys(BlockedKeysRequest{Limit: 1001})
	for _, tc := range []struct {
		err  error
		want string
	}{
		{redrive(RedriveRequest{}), "set All"},
		{redrive(RedriveRequest{Filter: Filter{States: []core.State{core.StatePending}}}), "pending records cannot be redriven"},
		{redrive(RedriveRequest{All: true, InboxRetention: -1}), "InboxRetention: -1ns is negative"},
		{redrive(RedriveRequest{All: true, Page: PageRequest{Limit: 1001}}), "Page.Limit: 1001 is not between 1 and 1000"},
		{redrive(RedriveRequest{All: true, Body: []byte{}}), "Body: is for one record, but Filter has 0 routes and 0 ids"},
		{redrive(RedriveRequest{Filter: Filter{Routes: []string{"r"}, IDs: []string{"i"}}, Body: []byte("four")}), "Body: has 4 bytes"},
		{list(Filter{}, PageRequest{After: -1}), "Page.After: -1 is negative"},
		{list(Filter{}, PageRequest{Budget: 1_000_001}), "Page.Budget"},
		{list(Filter{States: []core.State{9}}, PageRequest{}), "State(9) is not a state"},
		{list(Filter{States: []core.State{core.StateNone}}, PageRequest{}), "none is not a state"},
		{list(Filter{IDs: make([]string, 1001)}, PageRequest{}), "Filter.IDs: 1001 values"},
		{list(Filter{Since: now, Until: now}, PageRequest{}), "is not after Since"},
		{blocked, "route: is empty"},
		{blocked, "Page.Limit: 1001"},
		{CheckDecide("r", "k", "id", 0), "action: 0 is none"},
		{CheckDecide("r", "", "", HeadSkip), "key: is empty; take it from BlockedKeys; id: is empty"},
		{HeadExpired("x", now), "redrive it with Force"},
		{HeadDuplicate("x"), "cancel that one first"},
	} {
		if !errors.Is(tc.err, waybill.ErrInvalid) || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%v, want %q", tc.err, tc.want)
		}
	}
	if err := NotHead("op", "r", "k", "id"); !errors.Is(err, waybill.ErrNotFound) || !strings.Contains(err.Error(), `"id"`) {
		t.Error(err)
	}
	if err := HeadInFlight("op", "r", "k", "id"); !errors.Is(err, waybill.ErrInFlight) {
		t.Error(err)
	}
	req, err := CheckRedrive(RedriveRequest{All: true}, waybill.Limits{})
	if err != nil || len(req.Filter.States) != 2 || req.Page != (PageRequest{Limit: DefaultPageLimit, Budget: DefaultPageBudget}) {
		t.Errorf("%+v %v", req, err)
	}
	if err := CheckDecide("r", "k", "id", HeadRequeue); err != nil {
		t.Error(err)
	}
}

// OR-04: a record that was taken out on purpose does not block its key.
func TestReasonsThatBlock(t *testing.T) {
	t.Parallel()
	for r, want := range map[waybill.Reason]bool{
		waybill.ReasonNone: false, waybill.ReasonCancelled: false, waybill.ReasonReplaced: false, waybill.ReasonSkipped: false, waybill.ReasonSetAside: false,
		waybill.ReasonExpired: true, waybill.ReasonRejected: true, waybill.ReasonCrashed: true, "an_adapter's_own": true,
	} {
		if r.Blocks() != want {
			t.Errorf("%q: %v", r, !want)
		}
	}
}

// DB-11
func TestFilterMatches(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := Stored{
		Envelope: waybill.Envelope{ID: "i", Topic: "t", Tenant: "n", Key: "k", Time: at}, Route: "r",
		State: core.StateAbandoned, Reason: waybill.ReasonCancelled,
	}
	for _, f := range []Filter{
		{},
		{IDs: []string{"x", "i"}},
		{Routes: []string{"r"}},
		{States: []core.State{core.StateFailed, core.StateAbandoned}},
		{Reasons: []waybill.Reason{waybill.ReasonCancelled}},
		{Topics: []string{"t"}},
		{Tenants: []string{"n"}},
		{Keys: []string{"k"}},
		{Since: at, Until: at.Add(1)},
	} {
		if !f.Matches(&s) {
			t.Errorf("%+v does not match", f)
		}
	}
	for _, f := range []Filter{
		{IDs: []string{"x"}},
		{Routes: []string{"x"}},
		{States: []core.State{core.StateFailed}},
		{Reasons: []waybill.Reason{waybill.ReasonExpired}},
		{Topics: []string{"x"}},
		{Tenants: []string{"x"}},
		{Keys: []string{"x"}},
		{Since: at.Add(1)},
		{Until: at},
		{IDs: []string{"i"}, Keys: []string{"x"}},
	} {
		if f.Matches(&s) {
			t.Errorf("%+v matches", f)
		}
	}
	for _, tc := range []struct {
		req  RedriveRequest
		want bool
	}{
		{RedriveRequest{All: true}, false},
		{RedriveRequest{Filter: Filter{Topics: []string{"t"}}}, false},
		{RedriveRequest{Filter: Filter{IDs: []string{"i"}}}, true},
		{RedriveRequest{Filter: Filter{Reasons: []waybill.Reason{waybill.ReasonCancelled}}}, true},
	} {
		if got := tc.req.Takes(core.StateAbandoned, waybill.ReasonCancelled); got != tc.want {
			t.Errorf("%+v takes a cancelled record: %v", tc.req, got)
		}
	}
}

// DB-11: the records that a redrive refuses, without and with Force.
func TestRedriveRefuses(t *testing.T) {
	t.Parallel()
	abandoned := Candidate{State: core.StateAbandoned, Reason: waybill.ReasonAttempts, Age: time.Hour, Keyed: true}
	with := func(change func(c *Candidate)) Candidate {
		c := abandoned
		change(&c)
		return c
	}
	for _, tc := range []struct {
		what  string
		req   RedriveRequest
		c     Candidate
		want  string
		force string
	}{
		{"later ones of its key", RedriveRequest{}, abandoned, RefusedOrder, ""},
		{"the last one", RedriveRequest{}, with(func(c *Candidate) { c.Last = true }), "", ""},
		{"no key", RedriveRequest{}, with(func(c *Candidate) { c.Keyed = false }), "", ""},
		{"a failed one", RedriveRequest{}, with(func(c *Candidate) { c.State, c.Reason = core.StateFailed, "" }), "", ""},
		{"one that blocked its key", RedriveRequest{BlockAfterAbandon: true}, abandoned, "", ""},
		{
			"one that was skipped",
			RedriveRequest{BlockAfterAbandon: true},
			with(func(c *Candidate) { c.Reason = waybill.ReasonSkipped }), RefusedOrder, "",
		},
		{"an expired one", RedriveRequest{}, with(func(c *Candidate) { c.Expired = true }), RefusedExpired, ""},
		{"an old one", RedriveRequest{InboxRetention: time.Minute}, abandoned, RefusedInboxRetention, ""},
		{"a taken dedupe key", RedriveRequest{}, with(func(c *Candidate) { c.Taken = true }), RefusedDuplicate, RefusedDuplicate},
	} {
		if got := tc.req.Refusal(&tc.c); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.what, got, tc.want)
		}
		tc.req.Force = true
		if got := tc.req.Refusal(&tc.c); got != tc.force {
			t.Errorf("%s, forced: %q, want %q", tc.what, got, tc.force)
		}
	}
}
