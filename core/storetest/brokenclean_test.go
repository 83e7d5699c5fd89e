package storetest_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/store/memory"
)

func (b *broken) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	if b.clean != nil {
		return b.clean(ctx, b, owner, lease)
	}
	return b.inner.Clean(ctx, owner, lease)
}

// WithRetention returns a harness with the same fault.
func (b *broken) WithRetention(_ context.Context, r waybill.Retention) (storetest.Harness, error) {
	spoil(b.retain, &r)
	inner, err := memory.New(memory.Options{Source: "/test", Retention: r})
	other := *b
	other.inner = inner
	return &other, err
}

// cleans is a fault in the question of a cleaner.
func cleans(fn func(owner *string, lease *time.Duration)) broken {
	return broken{clean: func(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error) {
		fn(&owner, &lease)
		return b.inner.Clean(ctx, owner, lease)
	}}
}

// cleaned is a fault in the answer to a cleaner.
func cleaned(fn func(done *core.Cleaned)) broken {
	return broken{clean: func(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error) {
		done, err := b.inner.Clean(ctx, owner, lease)
		fn(&done)
		return done, err
	}}
}

// settling is a cleaner that settles what was read and is none of its business.
func settling(outcome func(r *core.Record) core.Outcome, wanted func(r *core.Record) bool) broken {
	return broken{clean: func(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error) {
		done, err := b.inner.Clean(ctx, owner, lease)
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, r := range b.last {
			if wanted(&r) && b.inner.Settle(ctx, b.self, []core.Outcome{outcome(&r)}).FirstErr() == nil {
				done.Expired++
			}
		}
		return done, err
	}}
}

// owning cleans as if a member owned all routes with records that no member serves.
func owning(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error) {
	membership, err := b.inner.Heartbeat(ctx, core.HeartbeatRequest{})
	if err != nil {
		return core.Cleaned{}, err
	}
	counts, err := b.inner.Counts(ctx)
	if err != nil {
		return core.Cleaned{}, err
	}
	self := core.Member{Session: 1, Heartbeats: 1, Lease: time.Hour}
	for _, c := range counts {
		if !slices.ContainsFunc(membership.Partitions, func(u core.PartitionState) bool { return u.Partition.Route == c.Route }) {
			self.Routes = append(self.Routes, core.ServedRoute{Route: c.Route, InitialPartitions: 1})
		}
	}
	if membership, err = b.inner.Heartbeat(ctx, core.HeartbeatRequest{Self: self, Join: true}); err != nil {
		return core.Cleaned{}, err
	}
	take := core.HeartbeatRequest{Self: self}
	take.Self.Heartbeats++
	for _, u := range membership.Partitions {
		if u.Owner == 0 {
			take.Transfers = append(take.Transfers, core.Transfer{Partition: u.Partition, To: self.Session})
		}
	}
	if _, err = b.inner.Heartbeat(ctx, take); err != nil {
		return core.Cleaned{}, err
	}
	done, err := b.inner.Clean(ctx, owner, lease)
	_, left := b.inner.Heartbeat(ctx, core.HeartbeatRequest{Self: take.Self, Leave: true})
	return done, errors.Join(err, left)
}

// lonely cleans as if all members had left.
func lonely(ctx context.Context, b *broken, owner string, lease time.Duration) (core.Cleaned, error) {
	membership, err := b.inner.Heartbeat(ctx, core.HeartbeatRequest{})
	for i := range membership.Members {
		if err == nil {
			_, err = b.inner.Heartbeat(ctx, core.HeartbeatRequest{Self: membership.Members[i], Leave: true})
		}
	}
	if err != nil {
		return core.Cleaned{}, err
	}
	return b.inner.Clean(ctx, owner, lease)
}

// cleanFaults are cleaners with one fault each, and the check that must notice.
var cleanFaults = []faulty{
	{"everybody is elected", "clean-elects-one", cleans(func(owner *string, _ *time.Duration) { *owner = "all" })},
	{"a lease never ends", "clean-elects-one", cleans(func(_ *string, lease *time.Duration) { *lease = time.Hour })},
	{"a lease cannot be renewed", "clean-elects-one", cleans(func(owner *string, _ *time.Duration) { *owner = waybill.NewID() })},
	{"nothing is swept", "clean-sweeps-what-expired", broken{clean: func(context.Context, *broken, string, time.Duration) (core.Cleaned, error) {
		return core.Cleaned{Leader: true}, nil
	}}},
	{"held ones are swept", "clean-sweeps-what-expired", settling(
		func(r *core.Record) core.Outcome {
			return core.Abandon(r, waybill.ReasonExpired, errors.New("expired"))
		},
		func(r *core.Record) bool { return r.Envelope.Expired(time.Now()) },
	)},
	{"swept ones hold back their key", "clean-frees-the-keys-of-what-it-sweeps", blocksAlways},
	{"what is due waits for its owner though there is none", "clean-sweeps-what-nobody-owns", broken{clean: owning}},
	{"nobody counts as owner", "clean-leaves-what-is-due-to-its-owner", broken{clean: lonely}},
	{"an owner of a partition counts as owner of all", "clean-leaves-what-is-due-to-its-owner", broken{clean: owning}},
	{"held ones are deleted", "clean-never-deletes-what-is-not-settled", settling(core.Published, func(*core.Record) bool { return true })},
	{"nothing is deleted", "clean-never-deletes-what-is-not-settled", broken{retain: func(r *waybill.Retention) { *r = waybill.Retention{Abandoned: -1} }}},
	{"deleted ones are not counted", "clean-never-deletes-what-is-not-settled", cleaned(func(done *core.Cleaned) { done.Deleted = nil })},
	{"deleted before their time", "clean-keeps-what-retention-says", broken{retain: func(r *waybill.Retention) { *r = waybill.Retention{Abandoned: 1} }}},
	{"kept for ever", "clean-keeps-what-retention-says", broken{retain: func(r *waybill.Retention) { *r = waybill.Retention{} }}},
	{"published ones are not kept", "published-records-are-kept-for-their-retention", broken{retain: func(r *waybill.Retention) { r.Published = 0 }}},
	{"published ones are kept for ever", "published-records-are-kept-for-their-retention", broken{retain: func(r *waybill.Retention) { r.Published = -1 }}},
	{"nobody is told of a sweep", "owner-is-notified-of-sweep", mute},
	{"tells the owner that is to come", "nobody-is-notified-of-a-route-never-served", broken{page: func(_ *broken, p *core.ReadResult) {
		p.Notices = append(p.Notices, core.Notice{Number: 1, Kind: core.NoticeReread})
	}}},
	{"nobody is told of a deletion", "owner-is-notified-of-deletion", mute},
	{"anything goes", "clean-refuses-bad-input", cleans(func(owner *string, lease *time.Duration) { *owner, *lease = *owner+"x", max(*lease, time.Millisecond) })},
}

// mute drops all notices.
var mute = broken{page: func(_ *broken, p *core.ReadResult) { p.Notices = nil }}
