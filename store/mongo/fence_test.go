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

// A call of a member that is in the middle of its transaction keeps others from taking its partition and from removing
// it, and both go through when it has ended. DB-03 DB-15.
func TestFenceExcludesMovesAndRemovals(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	a := join(t, s, benchRoute)
	b := core.Member{Session: core.Session(sessions.Add(1)), Name: "b", Heartbeats: 1, Lease: time.Minute, Routes: a.Routes}
	heartbeat := func(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
		b.Heartbeats++
		m.Self = b
		m.Join = true
		return s.Heartbeat(ctx, m)
	}
	r, err := heartbeat(t.Context(), core.HeartbeatRequest{})
	if err != nil {
		t.Fatal(err)
	}
	partition := r.Partitions[0].Partition
	take := core.HeartbeatRequest{Transfers: []core.Transfer{{Partition: partition, From: a.Session, To: b.Session}}}
	remove := core.HeartbeatRequest{Evict: []core.Eviction{{Session: a.Session, Heartbeats: a.Heartbeats}}}

	begun, end, ended := make(chan struct{}, 100), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.fenced(t.Context(), "test", a.Session, stamps{}, func(context.Context, *work) error {
			begun <- struct{}{}
			<-end
			return nil
		})
	}()
	<-begun
	if r, err = heartbeat(t.Context(), remove); err != nil {
		t.Fatal(err)
	}
	if len(r.Members) != 2 {
		t.Error("a member was removed in the middle of its call")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	taken := make(chan error, 1)
	go func() {
		_, err := heartbeat(ctx, take)
		taken <- err
	}()
	c := core.Member{Session: core.Session(sessions.Add(1)), Name: "c", Heartbeats: 1, Lease: time.Minute}
	for range 5 { // each takes as long as a move does that need not wait
		if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: c, Join: true}); err != nil {
			t.Fatal(err)
		}
		c.Heartbeats++
	}
	cancel()
	if err := <-taken; err == nil || waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("a partition was taken from a member in the middle of its call: %v", err)
	}
	close(end)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if r, err = heartbeat(t.Context(), take); err != nil || r.Partitions[0].Owner != b.Session {
		t.Errorf("afterwards the partition is of %d: %v", r.Partitions[0].Owner, err)
	}
	patience.Until(t, "the member is removed", func() bool {
		r, err := heartbeat(t.Context(), remove)
		return err == nil && len(r.Members) == 2
	})
	err = s.fenced(t.Context(), "test", a.Session, stamps{}, func(context.Context, *work) error { return nil })
	if !errors.Is(err, core.ErrFenced) {
		t.Errorf("a removed member gets %v", err)
	}
}
