package storetest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// unknownLast is the last number drawn, as far as a model of members can know it.
const unknownLast = math.MaxInt64

// stranger is a session that is not a member.
const stranger who = other + 1

// group is a table of calls of Meet: it compares each answer with what rules.Meet makes of the last one.
type group struct {
	k     *kit
	route string      // the names of its routes begin with it
	now   core.Roster // the members of the table and the units of its routes
	kept  map[string]core.OwnedUnit
	name  map[core.Session]string
	last  int64 // drawn, at least
	rows  int
	bad   []string
}

func (k *kit) group() *group {
	k.stage(k.msg())
	p := k.player()
	g := &group{k: k, route: k.route + "-group", kept: map[string]core.OwnedUnit{}, name: map[core.Session]string{0: "nobody"}, last: p.look(core.Look{}).Last}
	p.meet(core.Meeting{Leave: true})
	return g
}

func (*group) Renew(context.Context, *core.Member, bool) error                { return nil }
func (*group) Flag(context.Context, core.Session) error                       { return nil }
func (*group) Save(context.Context, []core.OwnedUnit) error                   { return nil }
func (*group) Move(context.Context, core.Session, core.Session) (bool, error) { return true, nil }
func (*group) End(context.Context, core.Session, bool) (last int64, ok bool, err error) {
	return unknownLast, true, nil
}

func (g *group) Kept(_ context.Context, route string) (core.OwnedUnit, error) {
	return g.kept[route], nil
}

func (g *group) Retire(_ context.Context, kept core.OwnedUnit) error {
	g.kept[kept.Unit.Route] = kept
	return nil
}

// member returns a new one that serves the routes, each with the given number of units.
func (g *group) member(name string, units int, routes ...string) *core.Member {
	p := &player{g.k, core.Member{Session: core.Session(rand.Int64N(math.MaxInt64) + 1), Name: name, Beat: 1, Lease: Timeout, Handlers: 2, Free: 1}}
	for _, r := range routes {
		p.Serves = append(p.Serves, core.Serving{Route: r, Units: units})
	}
	g.name[p.Session] = name
	g.k.mu.Lock()
	defer g.k.mu.Unlock()
	g.k.players = append(g.k.players, p)
	return &p.Member
}

// meet makes a call, of so many rows.
func (g *group) meet(what string, rows int, m core.Meeting) {
	got, err := g.k.store.Meet(g.k.ctx, m)
	g.k.must("meet", err)
	g.k.must("decide", rules.Meet(g.k.ctx, g, &g.now, &m))
	g.rows += rows
	known := func(u core.OwnedUnit) bool { return !strings.HasPrefix(u.Unit.Route, g.route) }
	got.Units = slices.DeleteFunc(got.Units, known)
	got.Members = slices.DeleteFunc(got.Members, func(m core.Member) bool { return g.name[m.Session] == "" })
	for i := range g.now.Units { // a number that was drawn meanwhile
		u := &g.now.Units[i]
		at := slices.IndexFunc(got.Units, func(o core.OwnedUnit) bool { return o.Unit == u.Unit })
		if u.Careful == unknownLast && at >= 0 && got.Units[at].Careful >= g.last {
			u.Careful = got.Units[at].Careful
		}
	}
	is, want := g.lines(&got), g.lines(&g.now)
	for _, line := range want {
		if !slices.Contains(is, line) {
			g.bad = append(g.bad, what+": want "+line)
		}
	}
	for _, line := range is {
		if !slices.Contains(want, line) {
			g.bad = append(g.bad, what+": got "+line)
		}
	}
}

// lines returns a roster in words.
func (g *group) lines(r *core.Roster) []string {
	out := []string{fmt.Sprint("the caller is a member: ", r.Known)}
	for i := range r.Members {
		m := &r.Members[i]
		var serves []string
		for _, sv := range m.Serves {
			serves = append(serves, fmt.Sprint(strings.TrimPrefix(sv.Route, g.route), sv.Unable))
		}
		out = append(out, fmt.Sprintf("%s with beat %d, presence %d, flag %v, %d of %d handlers free, serves %q",
			m.Name, m.Beat, m.Presence, m.Flag, m.Free, m.Handlers, serves))
	}
	for _, u := range r.Units {
		out = append(out, fmt.Sprintf("unit %s%d-%d of %s in term %d, low %d, careful %d",
			strings.TrimPrefix(u.Unit.Route, g.route), u.Unit.From, u.Unit.To, g.name[u.Owner], u.Term, u.Low, u.Careful))
	}
	return out
}

func (g *group) end() {
	if len(g.bad) > 0 {
		g.k.fail("%d lines of answers are not what the rules say:\n%s", len(g.bad), strings.Join(g.bad[:min(len(g.bad), 6)], "\n"))
	}
}

// Meet moves units as rules.Meet says: from all owners, by all kinds of callers. ST-05.
func rulesMoves(k *kit) {
	g := k.group()
	for _, call := range []struct {
		name string
		of   func(m *core.Meeting, others []*core.Member)
	}{
		{"a member", func(*core.Meeting, []*core.Member) {}},
		{"a late member", func(m *core.Meeting, _ []*core.Member) { m.Self.Beat -= 2 }},
		{"one that looks", func(m *core.Meeting, _ []*core.Member) { m.Self.Beat-- }},
		{"one that leaves", func(m *core.Meeting, _ []*core.Member) { m.Leave = true }},
		{"one that joins", func(m *core.Meeting, others []*core.Member) { m.Self, m.Join = *others[1], true }},
		{"a stranger", func(m *core.Meeting, others []*core.Member) { m.Self = *others[1] }},
		{"a stranger that leaves", func(m *core.Meeting, others []*core.Member) { m.Self, m.Join, m.Leave = *others[1], true, true }},
		{"nobody", func(m *core.Meeting, _ []*core.Member) { m.Self.Session = 0 }},
		{"one that removes another", func(m *core.Meeting, others []*core.Member) { m.Remove = removals(0, others[0]) }},
		{"one that removes none", func(m *core.Meeting, others []*core.Member) { m.Remove = removals(-1, others...) }},
		{"one that removes itself", func(m *core.Meeting, _ []*core.Member) { m.Remove = removals(0, &m.Self) }},
		{"one that removes another and leaves", func(m *core.Meeting, others []*core.Member) {
			m.Remove, m.Leave = removals(0, others[0]), true
		}},
	} {
		a, b, c := g.member("self", core.NumSlots, g.route), g.member("other", core.NumSlots, g.route), g.member("stranger", core.NumSlots, g.route)
		session := func(w who) core.Session { return [...]core.Session{0, a.Session, b.Session, c.Session}[w] }
		b.Presence = 7
		g.meet("join", 0, core.Meeting{Self: *a, Join: true})
		g.meet("join", 0, core.Meeting{Self: *b, Join: true})
		var begin, hints, moves []core.Move
		unit := 0
		for _, owner := range []who{nobody, self, other} {
			for _, from := range []who{nobody, self, other, stranger} {
				for _, to := range []who{nobody, self, other, stranger} {
					u := g.now.Units[unit].Unit
					unit++
					begin = append(begin, core.Move{Unit: u, From: 0, To: a.Session})
					hints = append(hints, core.Move{Unit: u, From: a.Session, To: a.Session, Low: int64(unit), Careful: int64(unit % 5)},
						core.Move{Unit: u, From: a.Session, To: session(owner)})
					moves = append(moves, core.Move{Unit: u, From: session(from), To: session(to), Low: int64(100 + unit), Careful: 7})
				}
			}
		}
		twice := g.now.Units[unit].Unit // from hand to hand, and a part of a unit
		moves = append(moves, core.Move{Unit: twice, To: a.Session}, core.Move{Unit: twice, From: a.Session, To: b.Session},
			core.Move{Unit: core.Unit{Route: g.route, From: 3, To: 5}, To: a.Session}, core.Move{Unit: core.Unit{Route: g.route + "-2", To: 64}, To: a.Session})
		a.Beat++
		g.meet("take all", 0, core.Meeting{Self: *a, Moves: begin})
		a.Beat++
		g.meet("share out", 0, core.Meeting{Self: *a, Moves: hints})
		a.Beat++
		m := core.Meeting{Self: *a, Moves: moves, Flag: []core.Flagging{{Session: b.Session, Presence: 7}}}
		call.of(&m, []*core.Member{b, c})
		g.meet(call.name, len(moves)+1, m)
		for _, m := range []*core.Member{a, b, c} {
			g.meet(call.name+", then "+m.Name+" leaves", 0, core.Meeting{Self: *m, Leave: true})
		}
	}
	g.end()
}

func removals(beat int64, members ...*core.Member) (out []core.Removal) {
	for _, m := range members {
		out = append(out, core.Removal{Session: m.Session, Beat: m.Beat + beat})
	}
	return out
}

// Meet renews, adds and ends the caller as rules.Meet says, and makes and retires units. ST-05.
func rulesRenew(k *kit) {
	g := k.group()
	bools := []bool{false, true}
	n := 0
	for _, known := range bools {
		for _, by := range []int64{-1, 0, 1} {
			for _, presence := range []int64{7, 8} {
				for _, flagged := range bools {
					for _, join := range bools {
						for _, leave := range bools {
							if !known && (by != 0 || flagged) {
								continue
							}
							n++
							first, second := fmt.Sprint(g.route, "-a", n), fmt.Sprint(g.route, "-b", n)
							m := g.member(fmt.Sprint("member ", n), 2, first)
							m.Beat, m.Presence = 5, 7
							if known {
								x := core.Meeting{Self: *m, Join: true}
								if flagged {
									x.Flag = []core.Flagging{{Session: m.Session, Presence: 7}}
								}
								g.meet("join", 0, x)
							}
							m.Beat, m.Presence, m.Free = 5+by, presence, 2
							m.Serves = append(m.Serves[:n%2], core.Serving{Route: second, Units: 3, Unable: n%3 == 0})
							what := fmt.Sprintf("known %v, beat by %d, presence %d after 7, flagged %v, join %v, leave %v", known, by, presence, flagged, join, leave)
							g.meet(what, 1, core.Meeting{Self: *m, Join: join, Leave: leave})
							g.meet(what+", afterwards", 0, core.Meeting{Self: core.Member{Session: m.Session}})
						}
					}
				}
			}
		}
	}
	g.end()
}

// Meet removes and flags members as rules.Meet says, and frees their units. ST-05.
func rulesRemove(k *kit) {
	g := k.group()
	for _, leave := range []bool{false, true} {
		route := fmt.Sprint(g.route, "-", leave)
		me := g.member("self", core.NumSlots, route)
		g.meet("join", 0, core.Meeting{Self: *me, Join: true})
		m := core.Meeting{Leave: leave}
		for _, presence := range []int64{0, 7} {
			for _, flagged := range []bool{false, true} {
				for _, removal := range []int64{-1, 0, 1} { // of an old beat, of none, of this beat
					for _, token := range []int64{-1, 0, 7, 8} { // -1: no flag
						if presence == 0 && flagged {
							continue
						}
						o := g.member(fmt.Sprintf("presence %d, flagged %v, removal %d, token %d", presence, flagged, removal, token), 1, route)
						o.Beat, o.Presence = 4, presence
						free := slices.IndexFunc(g.now.Units, func(u core.OwnedUnit) bool { return u.Unit.Route == route && u.Owner == 0 })
						x := core.Meeting{Self: *o, Join: true, Moves: []core.Move{{Unit: g.now.Units[free].Unit, To: o.Session}}}
						if flagged {
							x.Flag = []core.Flagging{{Session: o.Session, Presence: 7}}
						}
						g.meet("join", 0, x)
						if removal != 0 {
							m.Remove = append(m.Remove, removals(min(removal, 0), o)...)
						}
						if token >= 0 {
							m.Flag = append(m.Flag, core.Flagging{Session: o.Session, Presence: token})
						}
					}
				}
			}
		}
		me.Beat++
		m.Self = *me
		g.meet(fmt.Sprint("removals and flags, leaving: ", leave), len(g.now.Members)-1, m)
	}
	g.end()
}
