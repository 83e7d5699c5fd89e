package memory_test

import (
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

func owner(r core.Roster, u core.Unit) core.OwnedUnit {
	for _, o := range r.Units {
		if o.Unit == u {
			return o
		}
	}
	return core.OwnedUnit{Owner: -1}
}

func TestMeetOneMoveWins(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1)
	k.join(2)
	move := func(s core.Session) core.Roster {
		return k.meet(core.Meeting{Self: member(s, 2, 1), Moves: []core.Move{{Unit: unit, To: s}}})
	}
	first := move(1)
	k.fact("the first wins", owner(first, unit).Owner == 1)
	k.fact("the second loses", owner(move(2), unit).Owner == 1)
	again := move(1)
	first.Members, again.Members = nil, nil
	k.fact("a repeated call answers the same", reflect.DeepEqual(first, again))
	k.meet(core.Meeting{Self: member(1, 3, 1), Moves: []core.Move{{Unit: unit, From: 1, To: 1, Low: 7, Careful: 9}}})
	k.meet(core.Meeting{Self: member(2, 3, 1), Moves: []core.Move{{Unit: unit, From: 2, To: 2, Low: 1}}})
	k.fact("only the owner stores Low and Careful",
		owner(k.meet(core.Meeting{}), unit) == core.OwnedUnit{Unit: unit, Owner: 1, Term: 2, Low: 7, Careful: 9})
	k.meet(core.Meeting{Self: member(1, 4, 1), Moves: []core.Move{{Unit: unit, From: 1, To: 99}}})
	k.fact("nobody gives a unit to who is not there", owner(k.meet(core.Meeting{}), unit).Owner == 1)
}

func TestMeetMakesUnitsOnce(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.put(row("a", ""))
	k.same("unserved", k.meet(core.Meeting{}).Unserved, []string{route})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			m := core.Meeting{Self: member(core.Session(i+1), 1, i+1), Join: true}
			if _, err := k.Meet(t.Context(), m); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r := k.meet(core.Meeting{})
	var covered core.Slots
	for _, u := range r.Units {
		k.fact("units overlap", covered&u.Unit.Slots() == 0)
		covered |= u.Unit.Slots()
	}
	k.fact("every slot has a unit", covered == core.AllSlots)
	k.fact("everybody is there", len(r.Members) == 16 && !r.Known && len(r.Unserved) == 0)
}

func TestMeetRemoval(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, unit)
	k.join(2)
	k.put(row("a", "x"), row("b", "x"), row("c", "x"))
	k.hold(1, k.get(1, "a"))
	b := k.get(1, "b")
	remove := func(beat int64) core.Roster {
		return k.meet(core.Meeting{Self: member(2, 1, 1), Remove: []core.Removal{{Session: 1, Beat: beat}}})
	}
	k.fact("another beat is not dead", owner(remove(7), unit).Owner == 1)
	o := owner(remove(1), unit)
	k.fact("its unit is free, and careful up to the last number", o == core.OwnedUnit{Unit: unit, Term: 3, Careful: 3})
	k.fact("its hold counts as a crash", k.state("a").Crashes == 1 && k.state("a").Holder == 0 && k.state("b").Crashes == 0)
	remove(1)
	k.fact("once", k.state("a").Crashes == 1)
	k.is("settle", k.settle(1, core.Published(b))[0], core.ErrFenced)
	_, err := k.Take(t.Context(), 1, core.Want{Refs: []core.Ref{b.Ref}})
	k.is("take", err, core.ErrFenced)
	_, err = k.Due(t.Context(), 1, []core.Part{all}, 1)
	k.is("due", err, core.ErrFenced)
	_, err = k.GiveUp(t.Context(), 1, core.OwnedUnit{Unit: unit, Term: 2, Low: 0}, nil)
	k.is("give up", err, core.ErrFenced)
	k.fact("read", !k.look(1, core.Look{Parts: []core.Part{all}}).Known)
	k.fact("meet", !k.meet(core.Meeting{Self: member(1, 9, 1), Moves: []core.Move{{Unit: unit, To: 1}}}).Known)
	k.fact("it moves nothing", owner(k.meet(core.Meeting{}), unit).Owner == 0)
}

func TestMeetLeave(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	k.join(1, unit)
	k.put(row("a", ""))
	k.hold(1, k.get(1, "a"))
	k.meet(core.Meeting{Self: member(1, 2, 1), Moves: []core.Move{{Unit: unit, From: 1, To: 1, Low: 1, Careful: 5}}})
	leave := core.Meeting{Self: member(1, 3, 1), Leave: true}
	r := k.meet(leave)
	k.fact("it is gone", !r.Known && len(r.Members) == 0)
	k.fact("its units are, too", len(r.Units) == 0)
	k.fact("nothing is counted", k.state("a").Crashes == 0 && k.state("a").Holder == 0)
	k.fact("again: the same", reflect.DeepEqual(r, k.meet(leave)))
	r = k.meet(core.Meeting{Self: member(2, 1, 1), Join: true})
	k.fact("the next unit is as careful as it was", owner(r, unit) == core.OwnedUnit{Unit: unit, Term: 4, Low: 1, Careful: 5})
}

func TestMeetFlag(t *testing.T) {
	t.Parallel()
	k := newKit(t, memory.Options{})
	self := member(1, 1, 1)
	self.Presence, self.Lease = 5, time.Second
	k.meet(core.Meeting{Self: self, Join: true})
	k.meet(core.Meeting{Self: member(2, 1, 1), Join: true, Flag: []core.Flagging{{Session: 1, Presence: 4}, {Session: 77, Presence: 5}}})
	k.fact("another token is not flagged", !k.look(1, core.Look{}).Flag)
	k.meet(core.Meeting{Self: member(2, 2, 1), Flag: []core.Flagging{{Session: 1, Presence: 5}}})
	k.fact("a page carries the flag", k.look(1, core.Look{}).Flag)
	self.Beat = 2
	k.fact("a renewal with the old presence keeps it", k.meet(core.Meeting{Self: self}).Members[0].Flag)
	self.Beat, self.Presence = 3, 6
	k.fact("one with a new presence clears it", !k.meet(core.Meeting{Self: self}).Members[0].Flag)
	self.Beat = 2
	k.fact("a late one sets no beat back", k.meet(core.Meeting{Self: self}).Members[0].Beat == 3)
}
