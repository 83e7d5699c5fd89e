package mongo

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// A call of a member that is in the middle of its transaction keeps others from taking its unit and from removing it,
// and both go through when it has ended. DB-03 DB-15.
func TestFenceExcludesMovesAndRemovals(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	a := join(t, s, benchRoute)
	b := core.Member{Session: core.Session(sessions.Add(1)), Name: "b", Beat: 1, Lease: time.Minute, Serves: a.Serves}
	meet := func(ctx context.Context, m core.Meeting) (core.Roster, error) {
		b.Beat++
		m.Self = b
		m.Join = true
		return s.Meet(ctx, m)
	}
	r, err := meet(t.Context(), core.Meeting{})
	if err != nil {
		t.Fatal(err)
	}
	unit := r.Units[0].Unit
	take := core.Meeting{Moves: []core.Move{{Unit: unit, From: a.Session, To: b.Session}}}
	remove := core.Meeting{Remove: []core.Removal{{Session: a.Session, Beat: a.Beat}}}

	begun, end, ended := make(chan struct{}, 100), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.fenced(t.Context(), "test", a.Session, stamps{}, func(context.Context, *work) error {
			begun <- struct{}{}
			<-end
			return nil
		})
	}()
	<-begun
	if r, err = meet(t.Context(), remove); err != nil {
		t.Fatal(err)
	}
	if len(r.Members) != 2 {
		t.Error("a member was removed in the middle of its call")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	taken := make(chan error, 1)
	go func() {
		_, err := meet(ctx, take)
		taken <- err
	}()
	c := core.Member{Session: core.Session(sessions.Add(1)), Name: "c", Beat: 1, Lease: time.Minute}
	for range 5 { // each takes as long as a move does that need not wait
		if _, err := s.Meet(t.Context(), core.Meeting{Self: c, Join: true}); err != nil {
			t.Fatal(err)
		}
		c.Beat++
	}
	cancel()
	if err := <-taken; err == nil || waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("a unit was taken from a member in the middle of its call: %v", err)
	}
	close(end)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if r, err = meet(t.Context(), take); err != nil || r.Units[0].Owner != b.Session {
		t.Errorf("afterwards the unit is of %d: %v", r.Units[0].Owner, err)
	}
	patience.Until(t, "the member is removed", func() bool {
		r, err := meet(t.Context(), remove)
		return err == nil && len(r.Members) == 2
	})
	err = s.fenced(t.Context(), "test", a.Session, stamps{}, func(context.Context, *work) error { return nil })
	if !errors.Is(err, core.ErrFenced) {
		t.Errorf("a removed member gets %v", err)
	}
}
