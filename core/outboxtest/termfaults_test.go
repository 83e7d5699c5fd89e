package outboxtest_test

import (
	"context"

	"github.com/waybill-go/waybill/core"
)

// term is the partition's term as it is.
func (b *broken) term(u core.Partition) int64 {
	r, _ := b.store.Heartbeat(context.Background(), core.HeartbeatRequest{})
	for _, o := range r.Partitions {
		if o.Partition == u {
			return o.Term
		}
	}
	return 0
}

var termFaults = []faulty{
	{"has one term", "term-grows-with-each-owner", memberships(func(r *core.Membership) {
		for i := range r.Partitions {
			r.Partitions[i].Term = 1
		}
	})},
	{"has no term at first", "term-grows-with-each-owner", memberships(func(r *core.Membership) {
		for i := range r.Partitions {
			r.Partitions[i].Term--
		}
	})},
	{"has a new term with each heartbeat", "term-grows-with-each-owner", fault{membership: func(b *broken, _ *core.HeartbeatRequest, r *core.Membership) {
		b.count++
		for i := range r.Partitions {
			r.Partitions[i].Term += int64(b.count)
		}
	}}},
	{
		"ignores terms", "earlier-release-changes-nothing",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			u.Term = b.term(u.Partition)
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
	{
		"refuses an earlier term", "earlier-release-changes-nothing",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			if u.Term < b.term(u.Partition) {
				return false, core.ErrFenced
			}
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
	{
		"releases in a term that has not begun", "release-needs-its-term",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			u.Term = min(u.Term, b.term(u.Partition))
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
}
