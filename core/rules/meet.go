package rules

import (
	"context"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// Membership is what a store reads and writes for [Meet], within the transaction of the call.
type Membership interface {
	// Renew stores a member that joins, or that has a later beat now.
	Renew(ctx context.Context, m *core.Member, joins bool) error
	// Flag stores the flag of a member.
	Flag(ctx context.Context, session core.Session) error
	// Kept returns the first state of the next units of a route, as Retire stored it, and forgets it.
	Kept(ctx context.Context, route string) (core.OwnedUnit, error)
	// End ends the holds of a member, whose records may have been sent, and deletes the member. If it died, each
	// hold counts a crash and raises the version, and last is the last number drawn. If another transaction has
	// locked the member or its records, the answer is false, and nothing has changed.
	End(ctx context.Context, session core.Session, died bool) (last int64, ok bool, err error)
	// Move reports whether a unit can pass from a member to another now; 0 = no member. If it can, no call of the
	// one that loses it runs until the transaction ends, and the one that gets it stays a member.
	Move(ctx context.Context, from, to core.Session) (ok bool, err error)
	// Save stores units, which are new or have changed. If an owner has given its unit up meanwhile, that stays.
	Save(ctx context.Context, units []core.OwnedUnit) error
	// Retire deletes the units of a route. The route keeps Low, Careful and Term.
	Retire(ctx context.Context, kept core.OwnedUnit) error
}

// meeting is a call of Meet.
type meeting struct {
	*core.Meeting
	store   Membership
	now     *core.Roster
	changed map[core.Unit]bool
}

// Meet carries out a call of core.OutboxStore.Meet. now has all members in the order of their sessions, and all units
// in that of routes and slots; Meet brings it up to date, and Known. The order is:
//
//	the caller joins, or is renewed: a late renewal, behind a later one, changes nothing
//	units are made, for routes that have none, unless the caller leaves
//	removals: of members whose beat is still the given one
//	moves: of units that From owns, to a member or to none; the caller's own Low and Careful, unless it is late
//	flags: of members that have the given presence
//	the caller leaves
//	units end, of routes that no member serves and of which no member owns one
//
// A session that is not a member changes nothing, and one that removes itself nothing after that.
func Meet(ctx context.Context, store Membership, now *core.Roster, m *core.Meeting) error {
	t := meeting{m, store, now, map[core.Unit]bool{}}
	var err error
	if now.Known, err = t.renew(ctx); err != nil || !now.Known {
		return err
	}
	for _, step := range []func(context.Context) error{t.makeUnits, t.remove, t.move, t.flag, t.leave, t.retire, t.save} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	now.Known = t.self() != nil
	return nil
}

func (t *meeting) member(session core.Session) *core.Member {
	i := slices.IndexFunc(t.now.Members, func(m core.Member) bool { return m.Session == session && session != 0 })
	if i < 0 {
		return nil
	}
	return &t.now.Members[i]
}

// self returns the caller as a member, or nil.
func (t *meeting) self() *core.Member { return t.member(t.Self.Session) }

// renew reports whether the caller is a member.
func (t *meeting) renew(ctx context.Context) (known bool, err error) {
	self, old := t.Self, t.self()
	self.Flag, self.Missing, self.Serves = false, false, slices.Clone(self.Serves)
	switch {
	case old == nil && (!t.Join || t.Leave || self.Session == 0):
		return false, nil
	case old == nil:
		i := slices.IndexFunc(t.now.Members, func(m core.Member) bool { return m.Session > self.Session })
		if i < 0 {
			i = len(t.now.Members)
		}
		t.now.Members = slices.Insert(t.now.Members, i, self)
	case self.Beat > old.Beat:
		self.Flag = old.Flag && old.Presence == self.Presence
		*old = self
	default:
		return true, nil
	}
	return true, t.store.Renew(ctx, &self, old == nil)
}

func (t *meeting) makeUnits(ctx context.Context) error {
	for _, sv := range t.Self.Serves {
		if t.Leave || slices.ContainsFunc(t.now.Units, func(u core.OwnedUnit) bool { return u.Unit.Route == sv.Route }) {
			continue
		}
		kept, err := t.store.Kept(ctx, sv.Route)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(t.now.Units, func(u core.OwnedUnit) bool { return u.Unit.Route > sv.Route })
		if at < 0 {
			at = len(t.now.Units)
		}
		var made []core.OwnedUnit
		for _, u := range core.SplitRoute(sv.Route, sv.Units) {
			made = append(made, core.OwnedUnit{Unit: u, Term: kept.Term + 1, Low: kept.Low, Careful: kept.Careful})
			t.changed[u] = true
		}
		t.now.Units = slices.Insert(t.now.Units, at, made...)
	}
	return nil
}

func (t *meeting) remove(ctx context.Context) error {
	for _, r := range t.Remove {
		if m := t.member(r.Session); m != nil && m.Beat == r.Beat {
			if err := t.end(ctx, r.Session, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// end frees the units of a member. Those of one that died keep the number up to which it can have read.
func (t *meeting) end(ctx context.Context, session core.Session, died bool) error {
	last, ok, err := t.store.End(ctx, session, died)
	if err != nil || !ok {
		return err
	}
	for i := range t.now.Units {
		if u := &t.now.Units[i]; u.Owner == session {
			if died {
				u.Careful = max(u.Careful, last)
			}
			t.give(u, 0)
		}
	}
	t.now.Members = slices.DeleteFunc(t.now.Members, func(m core.Member) bool { return m.Session == session })
	return nil
}

// give changes the owner, and so begins another term.
func (t *meeting) give(u *core.OwnedUnit, to core.Session) {
	u.Owner, t.changed[u.Unit] = to, true
	u.Term++
}

func (t *meeting) move(ctx context.Context) error {
	for i := range t.Moves {
		m := &t.Moves[i]
		at := slices.IndexFunc(t.now.Units, func(u core.OwnedUnit) bool { return u.Owner == m.From && u.Unit == m.Unit })
		self := t.self()
		if at < 0 || self == nil || m.To != 0 && t.member(m.To) == nil {
			continue
		}
		u := &t.now.Units[at]
		if m.From == m.To {
			if m.To == self.Session && t.Self.Beat >= self.Beat {
				u.Low, u.Careful, t.changed[u.Unit] = m.Low, m.Careful, true
			}
			continue
		}
		ok, err := t.store.Move(ctx, m.From, m.To)
		if err != nil {
			return err
		}
		if ok {
			t.give(u, m.To)
		}
	}
	return nil
}

func (t *meeting) flag(ctx context.Context) error {
	for _, f := range t.Flag {
		m := t.member(f.Session)
		if m == nil || t.self() == nil || m.Flag || m.Presence != f.Presence || f.Presence == 0 {
			continue
		}
		m.Flag = true
		if err := t.store.Flag(ctx, f.Session); err != nil {
			return err
		}
	}
	return nil
}

func (t *meeting) leave(ctx context.Context) error {
	if !t.Leave || t.self() == nil {
		return nil
	}
	return t.end(ctx, t.Self.Session, false)
}

// retire ends the units of routes that no member serves or owns. Their next owners need the least Low and the greatest
// Careful of them, and a later term.
func (t *meeting) retire(ctx context.Context) error {
	used := map[string]bool{}
	for i := range t.now.Members {
		for _, sv := range t.now.Members[i].Serves {
			used[sv.Route] = true
		}
	}
	for _, u := range t.now.Units {
		used[u.Unit.Route] = used[u.Unit.Route] || u.Owner != 0
	}
	var gone []core.OwnedUnit
	t.now.Units = slices.DeleteFunc(t.now.Units, func(u core.OwnedUnit) bool {
		if used[u.Unit.Route] {
			return false
		}
		if n := len(gone); n > 0 && gone[n-1].Unit.Route == u.Unit.Route {
			k := &gone[n-1]
			k.Low, k.Careful, k.Term = min(k.Low, u.Low), max(k.Careful, u.Careful), max(k.Term, u.Term)
		} else {
			gone = append(gone, u)
		}
		return true
	})
	for _, kept := range gone {
		if err := t.store.Retire(ctx, kept); err != nil {
			return err
		}
	}
	return nil
}

func (t *meeting) save(ctx context.Context) error {
	var units []core.OwnedUnit
	for _, u := range t.now.Units {
		if t.changed[u.Unit] {
			units = append(units, u)
		}
	}
	if len(units) == 0 {
		return nil
	}
	return t.store.Save(ctx, units)
}
