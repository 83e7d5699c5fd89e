package outboxtest_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

func takes(fn func(b *broken, w *core.Want)) fault {
	return fault{take: func(ctx context.Context, b *broken, self core.Session, w core.Want) ([]core.Taken, error) {
		fn(b, &w)
		return b.grip(ctx, self, w)
	}}
}

func taken(fn func(b *broken, self core.Session, ts []core.Taken)) fault {
	return fault{take: func(ctx context.Context, b *broken, self core.Session, w core.Want) ([]core.Taken, error) {
		ts, err := b.grip(ctx, self, w)
		b.mu.Lock()
		defer b.mu.Unlock()
		fn(b, self, ts)
		return ts, err
	}}
}

func grips(from, to core.Grip) fault {
	return taken(func(_ *broken, _ core.Session, ts []core.Taken) {
		for i := range ts {
			if ts[i].Grip == from {
				ts[i].Grip = to
			}
		}
	})
}

// holdless takes the next without looking for holds, and without any.
var holdless = fault{take: func(ctx context.Context, b *broken, self core.Session, w core.Want) ([]core.Taken, error) {
	if w.N == 0 {
		return b.store.Take(ctx, self, w)
	}
	p, err := b.store.Read(ctx, self, core.Look{Ranges: []core.Range{{Part: w.Part, To: 1 << 60, Limit: 1000}}, Limit: 1, Bytes: 1 << 30})
	var out []core.Taken
	if len(p.Ranges) == 0 {
		return nil, err
	}
	for _, r := range p.Ranges[0].Records {
		if r.Envelope.Key == "" && !slices.Contains(w.Out, r.Ref) && len(out) < w.N {
			out = append(out, core.Taken{Ref: r.Ref, Grip: core.GripHeld, Record: &r})
		}
	}
	return out, err
}}

func giveUps(fn func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error)) fault {
	return fault{giveUp: fn}
}

// oneAtATime refuses a give-up that runs beside another.
func oneAtATime() func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
	met := make(chan struct{})
	return func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
		select {
		case met <- struct{}{}:
			return false, errors.New("another unit is given up")
		case <-met:
		case <-time.After(100 * time.Millisecond):
		}
		return b.store.GiveUp(ctx, self, u, out)
	}
}

var takeFaults = []faulty{
	{"ignores holds", "takers-never-share", holdless},
	{"forgets records", "takers-never-share", fault{take: func(ctx context.Context, b *broken, self core.Session,
		w core.Want,
	) ([]core.Taken, error) {
		ts, err := b.store.Take(ctx, self, w)
		return slices.DeleteFunc(ts, func(t core.Taken) bool { return t.Ref.Seq%50 == 0 }), err
	}}},
	{"takes backwards", "next-is-in-order-without-keys", taken(func(_ *broken, _ core.Session, ts []core.Taken) { slices.Reverse(ts) })},
	// as if no record had a key
	{"takes what has a key", "next-is-in-order-without-keys", fault{rowsIn: func(rows []core.StagedRow) {
		for i := range rows {
			rows[i].Envelope.Key = ""
		}
	}}},
	{
		"leaves out own holds", "next-begins-with-own-holds",
		fault{take: func(ctx context.Context, b *broken, self core.Session, w core.Want) ([]core.Taken, error) {
			for ref, s := range b.holds {
				if s == self {
					w.Out = append(w.Out, ref)
				}
			}
			return b.grip(ctx, self, w)
		}},
	},
	{"ignores Out", "next-begins-with-own-holds", takes(func(_ *broken, w *core.Want) { w.Out = nil })},
	{"ignores holds", "next-leaves-out-what-is-held", holdless},
	{"ignores slots", "next-leaves-out-what-is-held", takes(func(_ *broken, w *core.Want) { w.Part.Slots = core.AllSlots })},
	{"takes behind locks", "next-leaves-out-what-is-held", fault{waits: "take"}},
	{"ignores Bytes", "next-keeps-to-its-bytes", takes(func(_ *broken, w *core.Want) { w.Bytes = 1 << 40 })},
	{"takes nothing that is larger than Bytes", "next-keeps-to-its-bytes", takes(func(_ *broken, w *core.Want) {
		if w.Bytes < 1000 {
			w.N = 0
		}
	})},
	{"passes in silence what is locked", "next-says-what-it-passed", fault{take: func(ctx context.Context, b *broken, self core.Session,
		w core.Want,
	) ([]core.Taken, error) {
		ts, err := b.store.Take(ctx, self, w)
		if w.To == 0 || w.To == math.MaxInt64 {
			return ts, err
		}
		return slices.DeleteFunc(ts, func(t core.Taken) bool { return t.Record == nil && t.Ref.Seq > w.From }), err
	}}},
	{"forgets what was passed", "next-says-what-it-passed", takes(func(_ *broken, w *core.Want) {
		w.Passed = nil
	})},
	{"counts each answer as a delivery", "deliveries-count-once", taken(func(b *broken, _ core.Session, ts []core.Taken) {
		for i := range ts {
			ts[i].Deliveries += b.count
		}
		b.count++
	})},
	{"counts no deliveries", "deliveries-count-once", takes(func(_ *broken, w *core.Want) { w.Deliver = false })},
	{"counts each take as a delivery", "deliveries-count-once", takes(func(_ *broken, w *core.Want) { w.Deliver = true })},
	{
		"answers own holds as locked", "take-repeats",
		fault{take: func(ctx context.Context, b *broken, self core.Session, w core.Want) ([]core.Taken, error) {
			ts, err := b.store.Take(ctx, self, w)
			for i := range ts {
				if b.holds[ts[i].Ref] == self {
					ts[i].Grip = core.GripLocked
				}
				b.holds[ts[i].Ref] = self
			}
			return ts, err
		}},
	},
	{"takes behind locks", "take-answers-what-is-locked", fault{waits: "take"}},
	{"says that what is locked is gone", "take-answers-what-is-locked", grips(core.GripLocked, core.GripGone)},
	{"says that what is locked is held", "take-answers-what-is-locked", grips(core.GripLocked, core.GripHeld)},
	{"says that what another holds is gone", "take-answers-what-is-held", grips(core.GripLocked, core.GripGone)},
	{"takes what another holds", "take-answers-what-is-held", grips(core.GripLocked, core.GripHeld)},
	{"takes any version", "take-answers-what-is-gone", takes(func(b *broken, w *core.Want) {
		w.Refs = slices.Clone(w.Refs)
		for i := range w.Refs {
			if r := b.at(w.Refs[i]); r != nil && r.ID == w.Refs[i].ID {
				w.Refs[i].Version = r.Version
			}
		}
	})},
	{"takes any id", "take-answers-what-is-gone", takes(func(b *broken, w *core.Want) {
		w.Refs = slices.Clone(w.Refs)
		for i := range w.Refs {
			if r := b.at(w.Refs[i]); r != nil && r.Version == w.Refs[i].Version {
				w.Refs[i].ID = r.ID
			}
		}
	})},
	{
		"takes from any unit", "take-keeps-to-own-units",
		fault{take: func(ctx context.Context, b *broken, self core.Session, w core.Want) ([]core.Taken, error) {
			var ts []core.Taken
			for i := range w.Refs {
				if r := b.at(w.Refs[i]); r != nil {
					one, _ := b.store.Take(ctx, b.owner(r.Route, r.Slot), core.Want{Refs: w.Refs[i : i+1]})
					ts = append(ts, one...)
				}
			}
			return ts, nil
		}},
	},
	{"ignores holds", "one-of-two-takers-wins", holdless},

	{
		"holds nothing", "give-up-holds-what-is-out",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, _ []core.Ref) (bool, error) {
			return b.store.GiveUp(ctx, self, u, nil)
		}),
	},
	{
		"leaves other holds", "give-up-holds-what-is-out",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			for ref, s := range b.holds {
				if s == self {
					out = append(out, ref)
				}
			}
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
	{
		"stores no Low", "give-up-holds-what-is-out",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			u.Low = 0
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
	{"refuses a repetition", "give-up-repeats", giveUps(func(ctx context.Context, b *broken, self core.Session,
		u core.OwnedUnit, out []core.Ref,
	) (bool, error) {
		if b.given[u.Unit] {
			return false, core.ErrFenced
		}
		b.given[u.Unit] = true
		return b.store.GiveUp(ctx, self, u, out)
	})},
	{
		"gives up nothing if something changed", "give-up-leaves-out-what-changed",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			for _, ref := range out {
				if r := b.at(ref); r == nil || r.Ref != ref {
					return false, nil
				}
			}
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
	{
		"leaves holds of other versions", "give-up-ends-holds-of-other-versions",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			out = slices.Clone(out)
			for i := range out {
				if r := b.at(out[i]); r != nil && r.Holder == self {
					out[i] = r.Ref
				}
			}
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
	{
		"keeps a unit with a locked record", "give-up-passes-over-what-changed-and-is-locked",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			if b.locks > 0 {
				return false, nil
			}
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
	{
		"holds any version", "give-up-leaves-out-what-changed",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			out = slices.Clone(out)
			for i := range out {
				if r := b.at(out[i]); r != nil {
					out[i] = r.Ref
				}
			}
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
	{
		"frees a unit with a locked record", "give-up-of-locked-changes-nothing",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			ok, err := b.store.GiveUp(ctx, self, u, out)
			if !ok && err == nil {
				_, err = b.store.GiveUp(ctx, self, u, nil)
			}
			return ok, err
		}),
	},
	{
		"holds what it can", "give-up-of-locked-changes-nothing",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			ok, err := b.store.GiveUp(ctx, self, u, out)
			if !ok && err == nil {
				_, err = b.store.Take(ctx, self, core.Want{Refs: out})
			}
			return ok, err
		}),
	},
	{"gives up behind locks", "give-up-of-locked-changes-nothing", fault{waits: "give up"}},
	{
		"gives up for others", "give-up-needs-the-owner",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			if owner := b.owner(u.Unit.Route, u.Unit.From); owner != 0 {
				self = owner
			}
			return b.store.GiveUp(ctx, self, u, out)
		}),
	},
	{
		"frees the unit of a successor", "give-up-needs-the-owner",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, out []core.Ref) (bool, error) {
			if owner := b.owner(u.Unit.Route, u.Unit.From); b.given[u.Unit] {
				self, u.Term = owner, b.term(u.Unit)
			}
			ok, err := b.store.GiveUp(ctx, self, u, out)
			b.given[u.Unit] = b.given[u.Unit] || ok
			return ok, err
		}),
	},
	{
		"ends holds with the unit", "given-up-holds-settle",
		giveUps(func(ctx context.Context, b *broken, self core.Session, u core.OwnedUnit, _ []core.Ref) (bool, error) {
			return b.store.GiveUp(ctx, self, u, nil)
		}),
	},
	{"settles for owners only", "given-up-holds-settle", ownersOnly},
	{"gives up one unit at a time", "give-ups-run-at-once", giveUps(oneAtATime())},
}
