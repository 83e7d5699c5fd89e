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
	s.call("renew %d beat %d flag %v joins %v", m.Session, m.Beat, m.Flag, joins)
	return nil
}

func (s *store) Flag(_ context.Context, session core.Session) error {
	s.call("flag %d", session)
	return nil
}

func (s *store) Kept(_ context.Context, route string) (core.OwnedUnit, error) {
	s.call("kept %s", route)
	return core.OwnedUnit{Low: 3, Careful: 4, Term: 5}, nil
}

func (s *store) End(_ context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	s.call("end %d died %v", session, died)
	return 99, session != s.locked, s.err
}

func (s *store) Move(_ context.Context, from, to core.Session) (bool, error) {
	s.call("move %d to %d", from, to)
	return from == 0 || from != s.locked, nil
}

func (s *store) Save(_ context.Context, units []core.OwnedUnit) error {
	for _, u := range units {
		s.call("save %s", text(u))
	}
	return nil
}

func (s *store) Retire(_ context.Context, kept core.OwnedUnit) error {
	s.call("retire %s", text(kept))
	return nil
}

func text(u core.OwnedUnit) string {
	return fmt.Sprintf("%s %d-%d of %d term %d low %d careful %d", u.Unit.Route, u.Unit.From, u.Unit.To, u.Owner, u.Term, u.Low, u.Careful)
}

func member(session core.Session, beat int64, routes ...string) core.Member {
	m := core.Member{Session: session, Beat: beat, Presence: 7}
	for _, r := range routes {
		m.Serves = append(m.Serves, core.Serving{Route: r, Units: 1})
	}
	return m
}

// Two members, of which each owns a unit of two that cover route r; session 3 and routes s and t are new.
func TestMeet(t *testing.T) {
	t.Parallel()
	first, second := core.Unit{Route: "r", From: 0, To: 32}, core.Unit{Route: "r", From: 32, To: 64}
	remove := func(session core.Session, beat int64) []core.Removal {
		return []core.Removal{{Session: session, Beat: beat}}
	}
	for _, tc := range []struct {
		name   string
		m      core.Meeting
		locked core.Session
		known  bool
		calls  []string
	}{
		{"nobody", core.Meeting{Join: true, Remove: remove(1, 5)}, 0, false, nil},
		{"a stranger", core.Meeting{Self: member(3, 1, "s"), Remove: remove(1, 5)}, 0, false, nil},
		{"a look", core.Meeting{Self: member(1, 5, "r")}, 0, true, nil},
		{"a late renewal", core.Meeting{Self: member(1, 4, "r")}, 0, true, nil},
		{"a renewal", core.Meeting{Self: member(1, 6, "r")}, 0, true, []string{"renew 1 beat 6 flag true joins false"}},
		{
			"another presence",
			core.Meeting{Self: core.Member{Session: 1, Beat: 6, Presence: 8, Serves: member(1, 1, "r").Serves}},
			0, true,
			[]string{"renew 1 beat 6 flag false joins false"},
		},
		{
			"a newcomer",
			core.Meeting{Self: member(3, 1, "r", "s"), Join: true},
			0, true,
			[]string{"renew 3 beat 1 flag false joins true", "kept s", "save s 0-64 of 0 term 6 low 3 careful 4"},
		},
		{"a newcomer that takes", core.Meeting{Self: member(3, 1, "s"), Join: true, Moves: []core.Move{
			{Unit: core.Unit{Route: "s", To: 64}, To: 3}, {Unit: core.Unit{Route: "s", To: 64}, From: 3, To: 3, Low: 9, Careful: 1},
		}}, 0, true, []string{
			"renew 3 beat 1 flag false joins true", "kept s", "move 0 to 3", "save s 0-64 of 3 term 7 low 9 careful 1",
		}},
		{
			"a removal",
			core.Meeting{Self: member(1, 5), Remove: remove(2, 5)},
			0, true,
			[]string{"end 2 died true", "save r 32-64 of 0 term 3 low 20 careful 99"},
		},
		{"a removal that lost", core.Meeting{Self: member(1, 5), Remove: remove(2, 4)}, 0, true, nil},
		{"a removal and a lock", core.Meeting{Self: member(1, 5), Remove: remove(2, 5)}, 2, true, []string{"end 2 died true"}},
		{
			"it removes itself",
			core.Meeting{
				Self: member(1, 5), Remove: remove(1, 5), Leave: true, Moves: []core.Move{{Unit: second, From: 2}},
				Flag: []core.Flagging{{Session: 2, Presence: 7}},
			},
			0, false,
			[]string{"end 1 died true", "save r 0-32 of 0 term 3 low 10 careful 99"},
		},
		{"hints", core.Meeting{Self: member(1, 5), Moves: []core.Move{
			{Unit: first, From: 1, To: 1, Low: 7, Careful: 6}, {Unit: second, From: 2, To: 2, Low: 7}, {Unit: second, From: 1, To: 1, Low: 7},
		}}, 0, true, []string{"save r 0-32 of 1 term 2 low 7 careful 6"}},
		{"late hints", core.Meeting{Self: member(1, 4), Moves: []core.Move{{Unit: first, From: 1, To: 1, Low: 7}}}, 0, true, nil},
		{"moves", core.Meeting{Self: member(1, 5), Moves: []core.Move{
			{Unit: first, From: 1, To: 2}, {Unit: second, From: 2}, {Unit: second, To: 3}, {Unit: core.Unit{Route: "r", To: 64}},
		}}, 0, true, []string{
			"move 1 to 2", "move 2 to 0", "save r 0-32 of 2 term 3 low 10 careful 1", "save r 32-64 of 0 term 3 low 20 careful 2",
		}},
		{"a move and a lock", core.Meeting{Self: member(1, 5), Moves: []core.Move{{Unit: second, From: 2, To: 1}}}, 2, true, []string{"move 2 to 1"}},
		{"flags", core.Meeting{Self: member(1, 5), Flag: []core.Flagging{
			{Session: 2, Presence: 6}, {Session: 1, Presence: 7}, {Session: 2, Presence: 7}, {Session: 3, Presence: 7}, {Session: 2},
		}}, 0, true, []string{"flag 2"}},
		{
			"it leaves",
			core.Meeting{Self: member(1, 6, "t"), Leave: true},
			0, false,
			[]string{"renew 1 beat 6 flag true joins false", "end 1 died false", "save r 0-32 of 0 term 3 low 10 careful 1"},
		},
		{"it leaves and a lock", core.Meeting{Self: member(1, 5), Leave: true}, 1, true, []string{"end 1 died false"}},
		{
			"the last one leaves",
			core.Meeting{Self: member(1, 5), Leave: true, Remove: remove(2, 5)},
			0, false,
			[]string{"end 2 died true", "end 1 died false", "retire r 0-32 of 0 term 3 low 10 careful 99"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			flagged := member(1, 5, "r")
			flagged.Flag = true
			now := core.Roster{Members: []core.Member{flagged, member(2, 5, "r")}, Units: []core.OwnedUnit{
				{Unit: first, Owner: 1, Term: 2, Low: 10, Careful: 1}, {Unit: second, Owner: 2, Term: 2, Low: 20, Careful: 2},
			}}
			s := &store{locked: tc.locked}
			if err := rules.Meet(t.Context(), s, &now, &tc.m); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(s.calls, tc.calls) || now.Known != tc.known {
				t.Errorf("known %v after %q, want %v after %q", now.Known, s.calls, tc.known, tc.calls)
			}
			if !slices.IsSortedFunc(now.Members, func(a, b core.Member) int { return int(a.Session - b.Session) }) {
				t.Errorf("the members are not in order: %+v", now.Members)
			}
			if had := slices.ContainsFunc(now.Members, func(m core.Member) bool { return m.Session == tc.m.Self.Session && m.Session != 0 }); had != tc.known {
				t.Errorf("the caller is in the roster: %v, want %v", had, tc.known)
			}
		})
	}
}

func TestMeetReportsErrors(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection lost")
	now := core.Roster{Members: []core.Member{member(1, 5)}}
	if err := rules.Meet(t.Context(), &store{err: lost}, &now, &core.Meeting{Self: member(1, 5), Leave: true}); !errors.Is(err, lost) {
		t.Errorf("got %v, want %v", err, lost)
	}
}
