package outboxtest

import (
	"context"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var groupChecks = []named{
	{"group-settles-for-each-member", groupSettlesForEachMember},
	{"group-with-a-removed-session-is-refused", groupWithARemovedSessionIsRefused},
	{"group-with-a-locked-record-is-refused", groupWithALockedRecordIsRefused},
	{"group-with-another-record-is-refused", groupWithAnotherRecordIsRefused},
}

// groupSettler is table.GroupSettler.
type groupSettler interface {
	SettleGroup(ctx context.Context, selves []core.Session, outcomes [][]core.Outcome) bool
}

// group is two members of one process, with two records of each.
type group struct {
	k       *kit
	store   groupSettler
	members [2]*member
	records [2][]core.Record
}

func (k *kit) group() *group {
	g := &group{k: k, store: needs[groupSettler](k, k.store, "table.GroupSettler")}
	owner := k.owner(1)
	g.members = [2]*member{owner, k.join(1)}
	all := owner.some(4, key("k"))
	g.records = [2][]core.Record{all[:2], all[2:]}
	return g
}

// settle publishes all records together.
func (g *group) settle() (stored bool) {
	selves, outcomes := make([]core.Session, len(g.members)), make([][]core.Outcome, len(g.members))
	for i, m := range g.members {
		selves[i] = m.self.Session
		for j := range g.records[i] {
			outcomes[i] = append(outcomes[i], core.Published(&g.records[i][j]))
		}
	}
	g.k.soon("settle of a group", func() { stored = g.store.SettleGroup(g.k.ctx, selves, outcomes) })
	return stored
}

// aloneOf settles the records of one member without the group.
func (g *group) aloneOf(i int) {
	m := g.members[i]
	for j := range g.records[i] {
		m.settle(core.Published(&g.records[i][j]))
	}
	m.gone("it was published alone, after its group was refused", refs(g.records[i])...)
}

// Without this queues that share a process wait for each other's settles, or their messages come again.
func groupSettlesForEachMember(k *kit) {
	g := k.group()
	k.failIf(!g.settle(), "the records of two members were published, nothing is locked, and the settle of both is refused")
	for i, m := range g.members {
		m.gone("it was published in a group", refs(g.records[i])...)
	}
}

// Without this a process that was taken for dead ends messages that its successor has out.
func groupWithARemovedSessionIsRefused(k *kit) {
	k.mustFence()
	g := k.group()
	g.members[1].die(g.members[0])
	k.failIf(g.settle(), "one of two members was removed, and the settle of both counts")
	for i := range g.records[1] {
		g.members[0].untouched("a removed member settled it in a group", 0, &g.records[1][i])
	}
	g.aloneOf(0)
}

// Without this an application that keeps one record locked stops the settles of all queues of a process, or the locked
// record counts as settled.
func groupWithALockedRecordIsRefused(k *kit) {
	g := k.group()
	unlock := k.lock(g.records[1][0].ID)
	k.failIf(g.settle(), "one record of a group is locked, and all count as settled")
	g.aloneOf(0)
	unlock()
	g.aloneOf(1)
}

// Without this a message is lost after a restore, when its number was another's before.
func groupWithAnotherRecordIsRefused(k *kit) {
	g := k.group()
	r := &g.records[1][1]
	was := *r
	r.ID = waybill.NewID()
	k.failIf(g.settle(), "another record has the number of one of a group, and the settle counts")
	g.members[0].untouched("another id was settled in a group", 0, &was)
	*r = was
	g.aloneOf(0)
	g.aloneOf(1)
}
