package sharedtest

import (
	"context"

	"github.com/waybill-go/waybill/core"
)

// Store is an outbox store whose calls a test can watch, delay and fail.
type Store struct {
	core.OutboxStore
	// Before runs before each call: "heartbeat", "read", "hold", "release partition", "due" or "settle". arg is
	// what the call is about: a core.HeartbeatRequest, core.ReadRequest, core.HoldRequest, core.PartitionState,
	// []core.RouteSlots or []core.Outcome. An error is the answer of the call; of a settle it is that of every
	// outcome.
	Before func(ctx context.Context, call string, arg any) error
}

// Unwrap returns the store.
func (s *Store) Unwrap() any { return s.OutboxStore }

// Heartbeat implements core.OutboxStore.
func (s *Store) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	if err := s.Before(ctx, "heartbeat", m); err != nil {
		return core.Membership{}, err
	}
	return s.OutboxStore.Heartbeat(ctx, m)
}

// Read implements core.OutboxStore.
func (s *Store) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	if err := s.Before(ctx, "read", request); err != nil {
		return core.ReadResult{}, err
	}
	return s.OutboxStore.Read(ctx, self, request)
}

// Hold implements core.OutboxStore.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	if err := s.Before(ctx, "hold", want); err != nil {
		return nil, err
	}
	return s.OutboxStore.Hold(ctx, self, want)
}

// ReleasePartition implements core.OutboxStore.
func (s *Store) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	if err := s.Before(ctx, "release partition", partition); err != nil {
		return false, err
	}
	return s.OutboxStore.ReleasePartition(ctx, self, partition, out)
}

// Due implements core.OutboxStore.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	if err := s.Before(ctx, "due", parts); err != nil {
		return core.DueResult{}, err
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
