package rules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// store is a Membership that writes down what it is asked for.
type store struct {
	locked core.Session // of which nothing can end or pass
	err    error        // the answer of End
	calls  []string
}

func (s *store) call(format string, args ...any) {
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

func (s *store) Renew(_ context.Context, m *core.Member, joins bool) error {
	s.call("renew %d heartbeats %d suspected %v joins %v", m.Session, m.Heartbeats, m.Suspected, joins)
	return nil
}

func (s *store) Suspect(_ context.Context, session core.Session) error {
	s.call("suspected %d", session)
	return nil
}

func (s *store) Kept(_ context.Context, route string) (core.PartitionState, error) {
	s.call("kept %s", route)
	return core.PartitionState{ReadAfter: 3, MaybeOutUpTo: 4, Term: 5}, nil
}

func (s *store) End(_ context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	s.call("end %d died %v", session, died)
	return 99, session != s.locked, s.err
}

func (s *store) Transfer(_ context.Context, from, to core.Session) (bool, error) {
	s.call("move %d to %d", from, to)
	return from == 0 || from != s.locked, nil
}

func (s *store) Save(_ context.Context, partitions []core.PartitionState) error {
	for _, u := range partitions {
		s.call("save %s", text(u))
	}
	return nil
}

func (s *store) Retire(_ context.Context, kept core.PartitionState) error {
	s.call("retire %s", text(kept))
	return nil
}

func text(u core.PartitionState) string {
	return fmt.Sprintf("%s %d-%d of %d term %d readAfter %d uncertain %d", u.Partition.Route, u.Partition.From, u.Partition.To, u.Owner, u.Term, u.ReadAfter, u.MaybeOutUpTo)
}

func member(session core.Session, heartbeats int64, routes ...string) core.Member {
	m := core.Member{Session: session, Heartbeats: heartbeats, Presence: 7}
	for _, r := range routes {
		m.Routes = append(m.Routes, core.ServedRoute{Route: r, InitialPartitions: 1})
	}
	return m
}

// Two members, of which each owns a partition of two that cover route r; session 3 and routes s and t are new.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	first, second := core.Partition{Route: "r", From: 0, To: 32}, core.Partition{Route: "r", From: 32, To: 64}
	remove := func(session core.Session, heartbeats int64) []core.Eviction {
		return []core.Eviction{{Session: session, Heartbeats: heartbeats}}
	}
	for _, tc := range []struct {
		name   string
		m      core.HeartbeatRequest
		locked core.Session
		known  bool
		calls  []string
	}{
		{"nobody", core.HeartbeatRequest{Join: true, Evict: remove(1, 5)}, 0, false, nil},
		{"a stranger", core.HeartbeatRequest{Self: member(3, 1, "s"), Evict: remove(1, 5)}, 0, false, nil},
		{"a look", core.HeartbeatRequest{Self: member(1, 5, "r")}, 0, true, nil},
		{"a late renewal", core.HeartbeatRequest{Self: member(1, 4, "r")}, 0, true, nil},
		{"a renewal", core.HeartbeatRequest{Self: member(1, 6, "r")}, 0, true, []string{"renew 1 heartbeats 6 suspected true joins false"}},
		{
			"another presence",
			core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 6, Presence: 8, Routes: member(1, 1, "r").Routes}},
			0, true,
			[]string{"renew 1 heartbeats 6 suspected false joins false"},
		},
		{
			"a newcomer",
			core.HeartbeatRequest{Self: member(3, 1, "r", "s"), Join: true},
			0, true,
			[]string{"renew 3 heartbeats 1 suspected false joins true", "kept s", "save s 0-64 of 0 term 6 readAfter 3 uncertain 4"},
		},
		{"a newcomer that takes", core.HeartbeatRequest{Self: member(3, 1, "s"), Join: true, Transfers: []core.Transfer{
			{Partition: core.Partition{Route: "s", To: 64}, To: 3}, {Partition: core.Partition{Route: "s", To: 64}, From: 3, To: 3, ReadAfter: 9, MaybeOutUpTo: 1},
		}}, 0, true, []string{
			"renew 3 heartbeats 1 suspected false joins true", "kept s", "move 0 to 3", "save s 0-64 of 3 term 7 readAfter 9 uncertain 1",
		}},
		{
			"a removal",
			core.HeartbeatRequest{Self: member(1, 5), Evict: remove(2, 5)},
			0, true,
			[]string{"end 2 died true", "save r 32-64 of 0 term 3 readAfter 20 uncertain 99"},
		},
		{"a removal that lost", core.HeartbeatRequest{Self: member(1, 5), Evict: remove(2, 4)}, 0, true, nil},
		{"a removal and a lock", core.HeartbeatRequest{Self: member(1, 5), Evict: remove(2, 5)}, 2, true, []string{"end 2 died true"}},
		{
			"it removes itself",
			core.HeartbeatRequest{
				Self: member(1, 5), Evict: remove(1, 5), Leave: true, Transfers: []core.Transfer{{Partition: second, From: 2}},
				Suspect: []core.Suspicion{{Session: 2, Presence: 7}},
			},
			0, false,
			[]string{"end 1 died true", "save r 0-32 of 0 term 3 readAfter 10 uncertain 99"},
		},
		{"hints", core.HeartbeatRequest{Self: member(1, 5), Transfers: []core.Transfer{
			{Partition: first, From: 1, To: 1, ReadAfter: 7, MaybeOutUpTo: 6}, {Partition: second, From: 2, To: 2, ReadAfter: 7}, {Partition: second, From: 1, To: 1, ReadAfter: 7},
		}}, 0, true, []string{"save r 0-32 of 1 term 2 readAfter 7 uncertain 6"}},
		{"late hints", core.HeartbeatRequest{Self: member(1, 4), Transfers: []core.Transfer{{Partition: first, From: 1, To: 1, ReadAfter: 7}}}, 0, true, nil},
		{"moves", core.HeartbeatRequest{Self: member(1, 5), Transfers: []core.Transfer{
			{Partition: first, From: 1, To: 2}, {Partition: second, From: 2}, {Partition: second, To: 3}, {Partition: core.Partition{Route: "r", To: 64}},
		}}, 0, true, []string{
			"move 1 to 2", "move 2 to 0", "save r 0-32 of 2 term 3 readAfter 10 uncertain 1", "save r 32-64 of 0 term 3 readAfter 20 uncertain 2",
		}},
		{"a move and a lock", core.HeartbeatRequest{Self: member(1, 5), Transfers: []core.Transfer{{Partition: second, From: 2, To: 1}}}, 2, true, []string{"move 2 to 1"}},
		{"flags", core.HeartbeatRequest{Self: member(1, 5), Suspect: []core.Suspicion{
			{Session: 2, Presence: 6}, {Session: 1, Presence: 7}, {Session: 2, Presence: 7}, {Session: 3, Presence: 7}, {Session: 2},
		}}, 0, true, []string{"suspected 2"}},
		{
			"it leaves",
			core.HeartbeatRequest{Self: member(1, 6, "t"), Leave: true},
			0, false,
			[]string{"renew 1 heartbeats 6 suspected true joins false", "end 1 died false", "save r 0-32 of 0 term 3 readAfter 10 uncertain 1"},
		},
		{"it leaves and a lock", core.HeartbeatRequest{Self: member(1, 5), Leave: true}, 1, true, []string{"end 1 died false"}},
		{
			"the last one leaves",
			core.HeartbeatRequest{Self: member(1, 5), Leave: true, Evict: remove(2, 5)},
			0, false,
			[]string{"end 2 died true", "end 1 died false", "retire r 0-32 of 0 term 3 readAfter 10 uncertain 99"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			flagged := member(1, 5, "r")
			flagged.Suspected = true
			now := core.Membership{Members: []core.Member{flagged, member(2, 5, "r")}, Partitions: []core.PartitionState{
				{Partition: first, Owner: 1, Term: 2, ReadAfter: 10, MaybeOutUpTo: 1}, {Partition: second, Owner: 2, Term: 2, ReadAfter: 20, MaybeOutUpTo: 2},
			}}
			s := &store{locked: tc.locked}
			if err := rules.Heartbeat(t.Context(), s, &now, &tc.m); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(s.calls, tc.calls) || now.IsMember != tc.known {
				t.Errorf("known %v after %q, want %v after %q", now.IsMember, s.calls, tc.known, tc.calls)
			}
			if !slices.IsSortedFunc(now.Members, func(a, b core.Member) int { return int(a.Session - b.Session) }) {
				t.Errorf("the members are not in order: %+v", now.Members)
			}
			if had := slices.ContainsFunc(now.Members, func(m core.Member) bool { return m.Session == tc.m.Self.Session && m.Session != 0 }); had != tc.known {
				t.Errorf("the caller is in the membership: %v, want %v", had, tc.known)
			}
		})
	}
}

func TestHeartbeatReportsErrors(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection lost")
	now := core.Membership{Members: []core.Member{member(1, 5)}}
	if err := rules.Heartbeat(t.Context(), &store{err: lost}, &now, &core.HeartbeatRequest{Self: member(1, 5), Leave: true}); !errors.Is(err, lost) {
		t.Errorf("got %v, want %v", err, lost)
	}
}
