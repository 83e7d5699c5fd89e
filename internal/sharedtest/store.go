package sharedtest

import (
	"context"

	"github.com/waybill-go/waybill/core"
)

// Store is an outbox store whose calls a test can watch, delay and fail.
type Store struct {
	core.OutboxStore
	// Before runs before each call: "meet", "read", "take", "give up", "due" or "settle". arg is what the call is
	// about: a core.Meeting, core.Look, core.Want, core.OwnedUnit, []core.Part or []core.Outcome. An error is the
	// answer of the call; of a settle it is that of every outcome.
	Before func(ctx context.Context, call string, arg any) error
}

// Unwrap returns the store.
func (s *Store) Unwrap() any { return s.OutboxStore }

// Meet implements core.OutboxStore.
func (s *Store) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	if err := s.Before(ctx, "meet", m); err != nil {
		return core.Roster{}, err
	}
	return s.OutboxStore.Meet(ctx, m)
}

// Read implements core.OutboxStore.
func (s *Store) Read(ctx context.Context, self core.Session, look core.Look) (core.Page, error) {
	if err := s.Before(ctx, "read", look); err != nil {
		return core.Page{}, err
	}
	return s.OutboxStore.Read(ctx, self, look)
}

// Take implements core.OutboxStore.
func (s *Store) Take(ctx context.Context, self core.Session, want core.Want) ([]core.Taken, error) {
	if err := s.Before(ctx, "take", want); err != nil {
		return nil, err
	}
	return s.OutboxStore.Take(ctx, self, want)
}

// GiveUp implements core.OutboxStore.
func (s *Store) GiveUp(ctx context.Context, self core.Session, unit core.OwnedUnit, out []core.Ref) (bool, error) {
	if err := s.Before(ctx, "give up", unit); err != nil {
		return false, err
	}
	return s.OutboxStore.GiveUp(ctx, self, unit, out)
}

// Due implements core.OutboxStore.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.Part, limit int) (core.DuePage, error) {
	if err := s.Before(ctx, "due", parts); err != nil {
		return core.DuePage{}, err
	}
	return s.OutboxStore.Due(ctx, self, parts, limit)
}

// Settle implements core.OutboxStore.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	if err := s.Before(ctx, "settle", outcomes); err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	return s.OutboxStore.Settle(ctx, self, outcomes)
}
