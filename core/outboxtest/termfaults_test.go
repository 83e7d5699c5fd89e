package outboxtest_test

import (
	"context"

	"github.com/waybill-go/waybill/core"
)

// term is the unit's term as it is.
func (b *broken) term(u core.Unit) int64 {
	r, _ := b.store.Meet(context.Background(), core.Meeting{})
	for _, o := range r.Units {
		if o.Unit == u {
			return o.Term
		}
	}
	return 0
}

var termFaults = []faulty{
	{"has one term", "term-grows-with-each-owner", rosters(func(r *core.Roster) {
		for i := range r.Units {
			r.Units[i].Term = 1
		}
	})},
	{"has no term at first", "term-grows-with-each-owner", rosters(func(r *core.Roster) {
		for i := range r.Units {
			r.Units[i].Term--
		}
	})},
	{"has a new term with each meeting", "term-grows-with-each-owner", fault{roster: func(b *broken, _ *core.Meeting, r *core.Roster) {
		b.count++
		for i := range r.Units {
			r.Units[i].Term += int64(b.count)
		}
	}}},
	{
		"ignores terms", "earlier-give-up-changes-nothing",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			u.Term = b.term(u.Unit)
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
	{
		"refuses an earlier term", "earlier-give-up-changes-nothing",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			if u.Term < b.term(u.Unit) {
				return false, core.ErrFenced
			}
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
	{
		"gives up in a term that has not begun", "give-up-needs-its-term",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			u.Term = min(u.Term, b.term(u.Unit))
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
}
