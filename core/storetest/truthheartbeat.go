package storetest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// unknownLast is the last number drawn, as far as a model of members can know it.
const unknownLast = math.MaxInt64

// stranger is a session that is not a member.
const stranger who = other + 1

// group is a table of calls of Heartbeat: it compares each answer with that of rules.Heartbeat to the last one.
type group struct {
	k     *kit
	route string          // the names of its routes begin with it
	now   core.Membership // the members of the table and the partitions of its routes
	kept  map[string]core.PartitionState
	name  map[core.Session]string
	last  int64 // drawn, at least
	bad   []string
}

func (k *kit) group() *group {
	k.stage(k.msg())
	p := k.player()
	g := &group{k: k, route: k.route + "-group", kept: map[string]core.PartitionState{}, name: map[core.Session]string{0: "nobody"}, last: p.look(core.ReadRequest{}).LastSeq}
	p.heartbeat(core.HeartbeatRequest{Leave: true})
	return g
}

func (*group) Renew(context.Context, *core.Member, bool) error                    { return nil }
func (*group) Suspect(context.Context, core.Session) error                        { return nil }
func (*group) Save(context.Context, []core.PartitionState) error                  { return nil }
func (*group) Transfer(context.Context, core.Session, core.Session) (bool, error) { return true, nil }

func (*group) End(context.Context, core.Session, bool) (last int64, ok bool, err error) {
	return unknownLast, true, nil
}

func (g *group) Kept(_ context.Context, route string) (core.PartitionState, error) {
	return g.kept[route], nil
}

func (g *group) Retire(_ context.Context, kept core.PartitionState) error {
	g.kept[kept.Partition.Route] = kept
	return nil
}

// member returns a new one that serves the routes, each with the given number of partitions.
func (g *group) member(name string, partitions int, routes ...string) *core.Member {
	p := g.k.plays(newMember(partitions, routes...))
	p.Name, p.Heartbeats, p.Capacity = name, 1, 2
	g.name[p.Session] = name
	return &p.Member
}

// heartbeat makes a call, of so many rows.
func (g *group) heartbeat(what string, rows int, m core.HeartbeatRequest) {
	got, err := g.k.store.Heartbeat(g.k.ctx, m)
	g.k.must("heartbeat", err)
	g.k.must("decide", rules.Heartbeat(g.k.ctx, g, &g.now, &m))
	g.k.truths += rows
	known := func(u core.PartitionState) bool { return !strings.HasPrefix(u.Partition.Route, g.route) }
	got.Partitions = slices.DeleteFunc(got.Partitions, known)
	got.Members = slices.DeleteFunc(got.Members, func(m core.Member) bool { return g.name[m.Session] == "" })
	for i := range g.now.Partitions { // a number that was drawn meanwhile
		u := &g.now.Partitions[i]
		at := slices.IndexFunc(got.Partitions, func(o core.PartitionState) bool { return o.Partition == u.Partition })
		if u.MaybeOutUpTo == unknownLast && at >= 0 && got.Partitions[at].MaybeOutUpTo >= g.last {
			u.MaybeOutUpTo = got.Partitions[at].MaybeOutUpTo
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

// lines returns a membership in words.
func (g *group) lines(r *core.Membership) []string {
	out := []string{fmt.Sprint("the caller is a member: ", r.IsMember)}
	for i := range r.Members {
		m := &r.Members[i]
		var serves []string
		for _, sv := range m.Routes {
			serves = append(serves, fmt.Sprint(strings.TrimPrefix(sv.Route, g.route), sv.Unavailable))
		}
		out = append(out, fmt.Sprintf("%s with heartbeats %d, presence %d, suspected %v, %d of %d handlers free, serves %q",
			m.Name, m.Heartbeats, m.Presence, m.Suspected, m.FreeCapacity, m.Capacity, serves))
	}
	for _, u := range r.Partitions {
		out = append(out, fmt.Sprintf("partition %s%d-%d of %s in term %d, read_after %d, uncertain_up_to %d",
			strings.TrimPrefix(u.Partition.Route, g.route), u.Partition.From, u.Partition.To, g.name[u.Owner], u.Term, u.ReadAfter, u.MaybeOutUpTo))
	}
	return out
}

func (g *group) end() {
	if len(g.bad) > 0 {
		g.k.fail("%d lines of answers are not what the rules say:\n%s", len(g.bad), strings.Join(g.bad[:min(len(g.bad), 6)], "\n"))
	}
}

// Heartbeat moves partitions as rules.Heartbeat says: from all owners, by all kinds of callers. ST-05.
func rulesMoves(k *kit) {
	g := k.group()
	for _, call := range []struct {
		name string
		of   func(m *core.HeartbeatRequest, others []*core.Member)
	}{
		{"a member", func(*core.HeartbeatRequest, []*core.Member) {}},
		{"a late member", func(m *core.HeartbeatRequest, _ []*core.Member) { m.Self.Heartbeats -= 2 }},
		{"one that looks", func(m *core.HeartbeatRequest, _ []*core.Member) { m.Self.Heartbeats-- }},
		{"one that leaves", func(m *core.HeartbeatRequest, _ []*core.Member) { m.Leave = true }},
		{"one that joins", func(m *core.HeartbeatRequest, others []*core.Member) { m.Self, m.Join = *others[1], true }},
		{"a stranger", func(m *core.HeartbeatRequest, others []*core.Member) { m.Self = *others[1] }},
		{"a stranger that leaves", func(m *core.HeartbeatRequest, others []*core.Member) {
			m.Self, m.Join, m.Leave = *others[1], true, true
		}},
		{"nobody", func(m *core.HeartbeatRequest, _ []*core.Member) { m.Self.Session = 0 }},
		{"one that removes another", func(m *core.HeartbeatRequest, others []*core.Member) { m.Evict = removals(0, others[0]) }},
		{"one that removes none", func(m *core.HeartbeatRequest, others []*core.Member) { m.Evict = removals(-1, others...) }},
		{"one that removes itself", func(m *core.HeartbeatRequest, _ []*core.Member) { m.Evict = removals(0, &m.Self) }},
		{"one that removes another and leaves", func(m *core.HeartbeatRequest, others []*core.Member) {
			m.Evict, m.Leave = removals(0, others[0]), true
		}},
	} {
		a, b, c := g.member("self", core.NumSlots, g.route), g.member("other", core.NumSlots, g.route), g.member("stranger", core.NumSlots, g.route)
		session := func(w who) core.Session { return [...]core.Session{0, a.Session, b.Session, c.Session}[w] }
		b.Presence = 7
		g.heartbeat("join", 0, core.HeartbeatRequest{Self: *a, Join: true})
		g.heartbeat("join", 0, core.HeartbeatRequest{Self: *b, Join: true})
		var begin, hints, moves []core.Transfer
		partition := 0
		for c := range product(int(other)+1, int(stranger)+1, int(stranger)+1) { // owner, from, to
			u := g.now.Partitions[partition].Partition
			partition++
			begin = append(begin, core.Transfer{Partition: u, From: 0, To: a.Session})
			hints = append(hints, core.Transfer{Partition: u, From: a.Session, To: a.Session, ReadAfter: int64(partition), MaybeOutUpTo: int64(partition % 5)},
				core.Transfer{Partition: u, From: a.Session, To: session(who(c[0]))})
			moves = append(moves, core.Transfer{Partition: u, From: session(who(c[1])), To: session(who(c[2])), ReadAfter: int64(100 + partition), MaybeOutUpTo: 7})
		}
		twice := g.now.Partitions[partition].Partition // from hand to hand, and a part of a partition
		moves = append(moves, core.Transfer{Partition: twice, To: a.Session}, core.Transfer{Partition: twice, From: a.Session, To: b.Session},
			core.Transfer{Partition: core.Partition{Route: g.route, From: 3, To: 5}, To: a.Session}, core.Transfer{Partition: core.Partition{Route: g.route + "-2", To: 64}, To: a.Session})
		a.Heartbeats++
		g.heartbeat("take all", 0, core.HeartbeatRequest{Self: *a, Transfers: begin})
		a.Heartbeats++
		g.heartbeat("share out", 0, core.HeartbeatRequest{Self: *a, Transfers: hints})
		a.Heartbeats++
		m := core.HeartbeatRequest{Self: *a, Transfers: moves, Suspect: []core.Suspicion{{Session: b.Session, Presence: 7}}}
		call.of(&m, []*core.Member{b, c})
		g.heartbeat(call.name, len(moves)+1, m)
		for _, m := range []*core.Member{a, b, c} {
			g.heartbeat(call.name+", then "+m.Name+" leaves", 0, core.HeartbeatRequest{Self: *m, Leave: true})
		}
	}
	g.end()
}

func removals(heartbeats int64, members ...*core.Member) (out []core.Eviction) {
	for _, m := range members {
		out = append(out, core.Eviction{Session: m.Session, Heartbeats: m.Heartbeats + heartbeats})
	}
	return out
}

// Heartbeat renews, adds and ends the caller as rules.Heartbeat says, and makes and retires partitions. ST-05.
func rulesRenew(k *kit) {
	g := k.group()
	n := 0
	for c := range product(2, 3, 2, 2, 2, 2) {
		known, by, presence, flagged, join, leave := c[0] == 1, int64(c[1]-1), int64(7+c[2]), c[3] == 1, c[4] == 1, c[5] == 1
		if !known && (by != 0 || flagged) {
			continue
		}
		n++
		first, second := fmt.Sprint(g.route, "-a", n), fmt.Sprint(g.route, "-b", n)
		m := g.member(fmt.Sprint("member ", n), 2, first)
		m.Heartbeats, m.Presence = 5, 7
		if known {
			x := core.HeartbeatRequest{Self: *m, Join: true}
			if flagged {
				x.Suspect = []core.Suspicion{{Session: m.Session, Presence: 7}}
			}
			g.heartbeat("join", 0, x)
		}
		m.Heartbeats, m.Presence, m.FreeCapacity = 5+by, presence, 2
		m.Routes = append(m.Routes[:n%2], core.ServedRoute{Route: second, InitialPartitions: 3, Unavailable: n%3 == 0})
		what := fmt.Sprintf("known %v, heartbeats by %d, presence %d after 7, flagged %v, join %v, leave %v", known, by, presence, flagged, join, leave)
		g.heartbeat(what, 1, core.HeartbeatRequest{Self: *m, Join: join, Leave: leave})
		g.heartbeat(what+", afterwards", 0, core.HeartbeatRequest{Self: core.Member{Session: m.Session}})
	}
	g.end()
}

// Heartbeat removes and flags members as rules.Heartbeat says, and frees their partitions. ST-05.
func rulesRemove(k *kit) {
	g := k.group()
	for _, leave := range []bool{false, true} {
		route := fmt.Sprint(g.route, "-", leave)
		me := g.member("self", core.NumSlots, route)
		g.heartbeat("join", 0, core.HeartbeatRequest{Self: *me, Join: true})
		m := core.HeartbeatRequest{Leave: leave}
		for c := range product(2, 2, 3, 4) {
			presence, flagged := int64(7*c[0]), c[1] == 1
			removal := int64(c[2] - 1)          // of an old renewal, of none, of this one
			token := []int64{-1, 0, 7, 8}[c[3]] // -1: no flag
			if presence == 0 && flagged {
				continue
			}
			o := g.member(fmt.Sprintf("presence %d, flagged %v, removal %d, token %d", presence, flagged, removal, token), 1, route)
			o.Heartbeats, o.Presence = 4, presence
			free := slices.IndexFunc(g.now.Partitions, func(u core.PartitionState) bool { return u.Partition.Route == route && u.Owner == 0 })
			x := core.HeartbeatRequest{Self: *o, Join: true, Transfers: []core.Transfer{{Partition: g.now.Partitions[free].Partition, To: o.Session}}}
			if flagged {
				x.Suspect = []core.Suspicion{{Session: o.Session, Presence: 7}}
			}
			g.heartbeat("join", 0, x)
			if removal != 0 {
				m.Evict = append(m.Evict, removals(min(removal, 0), o)...)
			}
			if token >= 0 {
				m.Suspect = append(m.Suspect, core.Suspicion{Session: o.Session, Presence: token})
			}
		}
		me.Heartbeats++
		m.Self = *me
		g.heartbeat(fmt.Sprint("removals and flags, leaving: ", leave), len(g.now.Members)-1, m)
	}
	g.end()
}
