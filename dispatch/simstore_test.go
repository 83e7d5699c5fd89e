package dispatch

import (
	"context"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// simStore is the store as members see it. Its transaction ids are as coarse as those of Postgres, whose snapshots do
// not name the transactions above the latest that has ended. It breaks a rule of the contract if it is told to.
type simStore struct {
	core.OutboxStore
	s     *sim
	first *core.ReadResult  // an earlier snapshot of the same read
	keep  **core.ReadResult // where to leave it
}

func (st *simStore) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	result, err := st.OutboxStore.Read(ctx, self, request)
	ended := result.SnapshotXmax - 1
	for ended > 0 && slices.Contains(result.RunningTxs, ended) {
		ended--
	}
	result.SnapshotXmax = ended + 1
	result.RunningTxs = slices.DeleteFunc(result.RunningTxs, func(m int64) bool { return m >= result.SnapshotXmax })
	if st.keep != nil {
		*st.keep = &result
		return result, err
	}
	if f := st.first; f != nil && len(f.Ranges) == len(result.Ranges) && len(f.Keys) == len(result.Keys) {
		switch st.s.cfg.broken {
		case "OneSnap": // what was passed is from an earlier snapshot than what is new
			for i := range request.Ranges {
				if request.Ranges[i].ExcludeSeqs != nil {
					result.Ranges[i] = f.Ranges[i]
				}
			}
		case "KeySnap": // keys are from a later snapshot than all else
			f.Keys = result.Keys
			result = *f
		}
	}
	return result, err
}

func (st *simStore) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	if st.s.cfg.broken == "SettleID" { // it takes whatever has the number
		for i := range outcomes {
			outcomes[i] = st.s.renamed(outcomes[i])
		}
	}
	return st.OutboxStore.Settle(ctx, self, outcomes)
}

func (st *simStore) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	if st.s.cfg.broken == "NoHolds" {
		out = nil // what is out is not written down
	}
	return st.OutboxStore.ReleasePartition(ctx, self, partition, out)
}

func (st *simStore) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	result, err := st.OutboxStore.Due(ctx, self, parts, limit)
	if st.s.cfg.broken == "DueRepeat" { // what was held by a call whose answer was lost is not said again
		result.Retries = slices.DeleteFunc(result.Retries, func(r core.Record) bool {
			again := st.s.held[r.ID] == r.Version
			st.s.held[r.ID] = r.Version
			return again
		})
	}
	return result, err
}

func (st *simStore) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	r, err := st.OutboxStore.Heartbeat(ctx, m)
	for i := range r.Members { // as a server does that sees connections
		o := &r.Members[i]
		o.PresenceLost = o.Presence != 0 && !st.s.tokens[o.Presence]
	}
	for _, gone := range m.Evict {
		for _, o := range st.s.members {
			if o.d.session == gone.Session && !o.dead && !st.s.now.Before(o.frozen) && !slices.ContainsFunc(r.Members, func(x core.Member) bool { return x.Session == gone.Session }) && st.s.calmer() {
				st.s.fail("removed-alive", "member %d was removed", o.name)
			}
		}
	}
	return r, err
}
