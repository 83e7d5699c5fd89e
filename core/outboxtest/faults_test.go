package outboxtest_test

import (
	"context"
	"errors"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// These functions make a fault of one kind of call of the store below: they change its question before, or its answer
// afterwards.

func heartbeats(fn func(b *broken, m *core.HeartbeatRequest)) fault {
	return fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
		m.Transfers, m.Evict, m.Suspect, m.Self.Routes = slices.Clone(m.Transfers), slices.Clone(m.Evict), slices.Clone(m.Suspect), slices.Clone(m.Self.Routes)
		fn(b, &m)
		return b.store.Heartbeat(ctx, m)
	}}
}

func memberships(fn func(r *core.Membership)) fault {
	return fault{membership: func(_ *broken, _ *core.HeartbeatRequest, r *core.Membership) { fn(r) }}
}

func eachMember(fn func(m *core.Member)) fault {
	return memberships(func(r *core.Membership) { each(r.Members, fn) })
}

func eachPartition(fn func(u *core.PartitionState)) fault {
	return memberships(func(r *core.Membership) { each(r.Partitions, fn) })
}

func each[T any](all []T, fn func(one *T)) {
	for i := range all {
		fn(&all[i])
	}
}

func eachRow(fn func(r *core.StagedRow)) fault {
	return fault{rowsIn: func(rows []core.StagedRow) { each(rows, fn) }}
}

func looks(fn func(l *core.ReadRequest)) fault { return fault{look: fn} }

func eachRange(fn func(rg *core.Range)) fault {
	return looks(func(l *core.ReadRequest) { each(l.Ranges, fn) })
}

func pages(fn func(p *core.ReadResult)) fault {
	return fault{page: func(_ *broken, _ *core.ReadRequest, p *core.ReadResult) { fn(p) }}
}

func eachAnswer(fn func(rs *core.Records)) fault {
	return pages(func(p *core.ReadResult) { each(p.Ranges, fn) })
}

func eachNotice(fn func(n *core.Notice)) fault {
	return pages(func(p *core.ReadResult) { each(p.Notices, fn) })
}

func records(fn func(r *core.Record)) fault { return fault{record: fn} }

func holdRequests(fn func(b *broken, w *core.HoldRequest)) fault {
	return fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		fn(b, &w)
		return b.holdStatus(ctx, self, w)
	}}
}

func holdResults(fn func(b *broken, self core.Session, ts []core.HoldResult)) fault {
	return fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		ts, err := b.holdStatus(ctx, self, w)
		b.mu.Lock()
		defer b.mu.Unlock()
		fn(b, self, ts)
		return ts, err
	}}
}

func holdStatuses(from, to core.HoldStatus) fault {
	return holdResults(func(_ *broken, _ core.Session, ts []core.HoldResult) {
		for i := range ts {
			if ts[i].Status == from {
				ts[i].Status = to
			}
		}
	})
}

func releases(fn func(r *releaseCall)) fault {
	return fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		fn(r)
		return r.pass(ctx)
	}}
}

// dueRequests changes the parts and the limit of a Due.
func dueRequests(fn func(b *broken, self core.Session, parts *[]core.RouteSlots, limit *int)) fault {
	return fault{due: func(ctx context.Context, b *broken, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
		parts = slices.Clone(parts)
		fn(b, self, &parts, &limit)
		return b.store.Due(ctx, self, parts, limit)
	}}
}

func duesOf(fn func(b *broken, self core.Session, p *core.DueResult)) fault {
	return fault{due: func(ctx context.Context, b *broken, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
		p, err := b.store.Due(ctx, self, parts, limit)
		fn(b, self, &p)
		return p, err
	}}
}

func dues(fn func(p *core.DueResult)) fault {
	return duesOf(func(_ *broken, _ core.Session, p *core.DueResult) { fn(p) })
}

func eachRetry(fn func(r *core.Record)) fault {
	return dues(func(p *core.DueResult) { each(p.Retries, fn) })
}

func outcomes(fn func(o core.Outcome, r *core.Record) core.Outcome) fault {
	return fault{outcome: func(_ *broken, o core.Outcome, r *core.Record) core.Outcome { return fn(o, named(&o, r)) }}
}

// outcomesOf changes the outcomes with one event.
func outcomesOf(event core.Event, fn func(o core.Outcome, r *core.Record) core.Outcome) fault {
	return outcomes(func(o core.Outcome, r *core.Record) core.Outcome {
		if o.Event() == event {
			return fn(o, r)
		}
		return o
	})
}

func results(fn func(res core.Results)) fault {
	return fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		res := b.store.Settle(ctx, self, os)
		fn(res)
		return res
	}}
}

// answersFor answers another result for an outcome that was refused for one reason.
func answersFor(why, result error) fault {
	return results(func(res core.Results) {
		for i := range res {
			if errors.Is(res[i], why) {
				res[i] = result
			}
		}
	})
}

// forgives says that an outcome that was refused for one reason was applied.
func forgives(why error) fault { return answersFor(why, nil) }

// settlesFenced settles what is fenced for the session that fn returns.
func settlesFenced(fn func(b *broken, o *core.Outcome) core.Session) fault {
	return fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		res := b.store.Settle(ctx, self, os)
		for i, err := range res {
			if by := fn(b, &os[i]); errors.Is(err, core.ErrFenced) && by != 0 {
				b.store.Settle(ctx, by, os[i:i+1])
			}
		}
		return res
	}}
}

// refuses answers what fn says of an outcome, and settles it if that is nil.
func refuses(fn func(b *broken, self core.Session, o *core.Outcome) error) fault {
	return fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		res := make(core.Results, len(os))
		for i := range os {
			if res[i] = fn(b, self, &os[i]); res[i] == nil {
				res[i] = b.store.Settle(ctx, self, os[i:i+1])[0]
			}
		}
		return res
	}}
}

// renamed names records as they are stored, if which accepts that.
func (b *broken) renamed(refs []core.Ref, which func(stored *core.Record, ref core.Ref) bool) []core.Ref {
	refs = slices.Clone(refs)
	for i, ref := range refs {
		if stored := b.at(ref); stored != nil && which(stored, ref) {
			refs[i] = stored.Ref
		}
	}
	return refs
}

// member returns a member as the store below has it.
func (b *broken) member(s core.Session) core.Member {
	r, _ := b.store.Heartbeat(context.Background(), core.HeartbeatRequest{})
	for _, m := range r.Members {
		if m.Session == s {
			return m
		}
	}
	return core.Member{}
}

// owner returns the owner of a slot.
func (b *broken) owner(route string, slot uint8) core.Session {
	r, _ := b.store.Heartbeat(context.Background(), core.HeartbeatRequest{})
	for _, u := range r.Partitions {
		if u.Partition.Route == route && u.Partition.Slots().Has(slot) && u.Owner != 0 {
			return u.Owner
		}
	}
	return 0
}

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
