package storetest_test

import (
	"context"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

func (b *brokenOps) DecideRecords(ctx context.Context, req admin.DecideRequest) ([]admin.Decision, error) {
	if b.many != nil {
		return b.many(ctx, b, req)
	}
	return b.inner.DecideRecords(b.context(ctx), req)
}

// asks is a fault in the decisions of a request.
func asks(fn func(b *brokenOps, req *admin.DecideRequest)) brokenOps {
	return brokenOps{many: func(ctx context.Context, b *brokenOps, req admin.DecideRequest) ([]admin.Decision, error) {
		req.Decisions = append([]admin.Decision(nil), req.Decisions...)
		fn(b, &req)
		return b.inner.DecideRecords(ctx, req)
	}}
}

// fated is a fault in the answer to a decision.
func fated(from, to admin.DecisionResult) brokenOps {
	return brokenOps{many: func(ctx context.Context, b *brokenOps, req admin.DecideRequest) ([]admin.Decision, error) {
		got, err := b.inner.DecideRecords(ctx, req)
		for i := range got {
			if got[i].Result == from {
				got[i].Result = to
			}
		}
		return got, err
	}}
}

// says answers every decision so, and does nothing.
func says(result admin.DecisionResult) brokenOps {
	return brokenOps{many: func(_ context.Context, _ *brokenOps, req admin.DecideRequest) ([]admin.Decision, error) {
		for i := range req.Decisions {
			req.Decisions[i].Result = result
		}
		return req.Decisions, nil
	}}
}

// keepsDecisions leaves the notice of a decision that the store carried out itself.
func keepsDecisions() brokenOps {
	return brokenOps{
		broken: &broken{page: func(b *broken, p *core.ReadResult) {
			for _, c := range b.left {
				if !slices.ContainsFunc(p.Notices, func(o core.Notice) bool { return o.Number == c.Number }) {
					p.Notices = append(p.Notices, c)
				}
			}
		}},
		many: func(ctx context.Context, b *brokenOps, req admin.DecideRequest) ([]admin.Decision, error) {
			got, err := b.inner.DecideRecords(ctx, req)
			for _, d := range got {
				if d.Result == admin.DecisionPending {
					b.left = append(b.left, core.Notice{Number: d.Number, Kind: core.NoticeDecide, Route: d.Route, ID: d.ID, Seq: d.Seq, Reason: req.Reason})
				}
			}
			return got, err
		},
	}
}

var decideFaults = []faultyOps{
	{"tells nobody", "decisions-end-what-nobody-can-have-out", brokenOps{broken: &mute}},
	{"mixes up the reasons", "decisions-end-what-nobody-can-have-out", asks(func(_ *brokenOps, req *admin.DecideRequest) {
		req.Reason = waybill.ReasonSkipped
	})},
	{"leaves it to the owner", "decisions-end-what-nobody-can-have-out", fated(admin.DecisionCarriedOut, admin.DecisionPending)},
	{"does nothing", "decisions-without-owner", says(admin.DecisionCarriedOut)},
	{"waits for an owner that is not there", "decisions-without-owner", fated(admin.DecisionCarriedOut, admin.DecisionPending)},
	{"takes more than it is asked for", "decisions-without-owner", asks(func(b *brokenOps, req *admin.DecideRequest) {
		l, _ := b.inner.List(context.Background(), admin.Filter{Routes: []string{req.Decisions[0].Route}}, admin.PageRequest{})
		more := *req
		more.Decisions = nil
		for _, st := range l.Records {
			more.Decisions = append(more.Decisions, admin.Decision{Route: st.Route, Seq: st.Seq, ID: st.Envelope.ID})
		}
		_, _ = b.inner.DecideRecords(context.Background(), more)
	})},
	{"does it instead of the owner", "decisions-through-owner", asks(func(b *brokenOps, req *admin.DecideRequest) {
		for _, d := range req.Decisions {
			if r, ok := b.last[d.Seq]; ok {
				b.inner.Settle(context.Background(), b.self, []core.Outcome{core.Cancel(&r, req.Reason)})
			}
		}
	})},
	{"tells the owner each time", "decisions-through-owner", asks(func(_ *brokenOps, req *admin.DecideRequest) {
		for i := range req.Decisions {
			req.Decisions[i].Number = 0
		}
	})},
	{"tells nobody", "decisions-through-owner", brokenOps{broken: &mute}},
	{"takes what was published for ended", "decisions-through-owner", fated(admin.DecisionSuperseded, admin.DecisionCarriedOut)},
	{"never asks again", "decisions-of-an-owner-that-left", brokenOps{
		many: func(ctx context.Context, b *brokenOps, req admin.DecideRequest) ([]admin.Decision, error) {
			if req.Decisions[0].Number != 0 {
				return says(admin.DecisionPending).many(ctx, b, req)
			}
			return b.inner.DecideRecords(ctx, req)
		},
	}},
	{"leaves its notice", "decisions-of-an-owner-that-left", keepsDecisions()},
	{"leaves its notice", "decisions-are-void-after-a-redrive", keepsDecisions()},
	{"takes all for ended", "decisions-leave-what-ended", fated(admin.DecisionSuperseded, admin.DecisionCarriedOut)},
	{"goes by the id alone", "decisions-leave-what-ended", asks(func(b *brokenOps, req *admin.DecideRequest) {
		for i, d := range req.Decisions {
			if st, err := b.inner.Inspect(context.Background(), d.Route, d.ID); err == nil {
				req.Decisions[i].Seq = st.Seq
			}
		}
	})},
	{"takes what is locked for ended", "decisions-pass-over-what-is-locked", fated(admin.DecisionLocked, admin.DecisionCarriedOut)},
	{"accepts everything", "decisions-refuse-bad-input", says(admin.DecisionCarriedOut)},
	{"ignores tenants", "decide-all", brokenOps{list: func(f *admin.Filter, _ *admin.PageRequest) { f.Tenants = nil }}},
	{"does nothing", "decide-all", says(admin.DecisionCarriedOut)},
	{"deletes nothing", "purge-all", brokenOps{purge: func(r *admin.PurgeRequest) { r.DryRun = true }}},
	{"ends nothing", "purge-all", says(admin.DecisionSuperseded)},
}
