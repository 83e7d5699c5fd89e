package transporttest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core/transporttest"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// brokenParked is a transport whose operators' part is broken by its hooks.
type brokenParked struct {
	*memtransport.Transport
	list          func(b *brokenParked, ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error)
	inspect       func(p *admin.Parked)
	count         func(counts map[waybill.Reason]int)
	replay, purge func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error)
	replayed      bool
}

func (b *brokenParked) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	if b.list != nil {
		return b.list(b, ctx, queue, f, limit)
	}
	return b.Transport.ListParked(ctx, queue, f, limit)
}

func (b *brokenParked) InspectParked(ctx context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	p, err := b.Transport.InspectParked(ctx, queue, f)
	if b.inspect != nil {
		b.inspect(&p)
	}
	return p, err
}

func (b *brokenParked) CountParked(ctx context.Context, queue string) (map[waybill.Reason]int, error) {
	counts, err := b.Transport.CountParked(ctx, queue)
	if b.count != nil {
		b.count(counts)
	}
	return counts, err
}

func (b *brokenParked) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	if b.replay != nil {
		return b.replay(b, ctx, req)
	}
	return b.Transport.ReplayParked(ctx, req)
}

func (b *brokenParked) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	if b.purge != nil {
		return b.purge(b, ctx, req)
	}
	return b.Transport.PurgeParked(ctx, req)
}

// brokenParkedQueues are ways to get it wrong, each with the check that must notice.
var brokenParkedQueues = []struct {
	name, check string
	broken      brokenParked
}{
	{"listing removes", "parked-list", brokenParked{list: func(b *brokenParked, ctx context.Context, queue string,
		f admin.ParkedFilter, limit int,
	) ([]admin.Parked, error) {
		out, err := b.Transport.ListParked(ctx, queue, f, limit)
		_, _ = b.Transport.PurgeParked(ctx, admin.ParkedRequest{Queue: queue, All: true, Limit: 1})
		return out, err
	}}},
	{"shows no body", "parked-inspect", brokenParked{inspect: func(p *admin.Parked) { p.Envelope.Body = nil }}},
	{"has no positions", "parked-inspect", brokenParked{inspect: func(p *admin.Parked) { p.Position = 1 }}},
	{"counts all as one", "parked-inspect", brokenParked{count: func(counts map[waybill.Reason]int) { counts[""] = 1 }}},
	{"ignores keys", "parked-filters", withoutFilter(func(f *admin.ParkedFilter) { f.Keys = nil })},
	{"ignores tenants", "parked-filters", withoutFilter(func(f *admin.ParkedFilter) { f.Tenants = nil })},
	{"ignores errors", "parked-filters", withoutFilter(func(f *admin.ParkedFilter) { f.Error = "" })},
	{"ignores times", "parked-filters", withoutFilter(func(f *admin.ParkedFilter) { f.Since, f.Until = time.Time{}, time.Time{} })},
	{"ignores positions", "parked-filters", withoutFilter(func(f *admin.ParkedFilter) { f.Positions = nil })},
	{"takes any filter", "parked-refuses", withoutFilter(func(f *admin.ParkedFilter) { *f = admin.ParkedFilter{} })},
	{"edits nothing", "parked-edit", brokenParked{replay: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
		req.Edit = nil
		return b.Transport.ReplayParked(ctx, req)
	}}},
	{"tells no results", "parked-edit", brokenParked{replay: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
		req.Result = nil
		return b.Transport.ReplayParked(ctx, req)
	}}},
	{"tells no results of a purge", "parked-edit", brokenParked{purge: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
		req.Result = nil
		return b.Transport.PurgeParked(ctx, req)
	}}},
	{"purges what it is to edit", "parked-refuses", brokenParked{purge: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
		req.Edit = nil
		return b.Transport.PurgeParked(ctx, req)
	}}},
	{"listing shows bodies", "parked-list", brokenParked{list: func(b *brokenParked, ctx context.Context, queue string,
		f admin.ParkedFilter, limit int,
	) ([]admin.Parked, error) {
		out, err := b.Transport.ListParked(ctx, queue, f, limit)
		for i := range out {
			out[i].Envelope.Body = []byte("body")
		}
		return out, err
	}}},
	{
		"listing ignores the filter", "parked-filter",
		brokenParked{list: func(b *brokenParked, ctx context.Context, queue string, _ admin.ParkedFilter,
			limit int,
		) ([]admin.Parked, error) {
			return b.Transport.ListParked(ctx, queue, admin.ParkedFilter{}, limit)
		}},
	},
	{
		"replays to everybody, as a new message", "parked-replay",
		brokenParked{replay: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
			for _, p := range b.Parked(req.Queue) {
				e := p.Envelope
				e.ID = waybill.NewID()
				b.Publish(ctx, []waybill.Envelope{e})
			}
			return b.Transport.PurgeParked(ctx, req)
		}},
	},
	{"replays nothing a second time", "parked-replay-again", brokenParked{replay: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
		if b.replayed {
			return 0, nil
		}
		b.replayed = true
		return b.Transport.ReplayParked(ctx, req)
	}}},
	{"replays and keeps", "parked-replay", brokenParked{replay: func(b *brokenParked, ctx context.Context,
		req admin.ParkedRequest,
	) (int, error) {
		n := 0
		for _, p := range b.Parked(req.Queue) {
			b.Publish(ctx, []waybill.Envelope{p.Envelope})
			n++
		}
		return n, nil
	}}},
	{
		"removes before it replays, and dies", "parked-concurrently",
		brokenParked{replay: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
			if n, err := b.Transport.PurgeParked(ctx, admin.ParkedRequest{Queue: req.Queue, All: true, Limit: 1}); err != nil || n == 0 {
				return n, err
			}
			req.Limit = 6
			n, err := b.Transport.ReplayParked(ctx, req)
			return n + 1, err
		}},
	},
	{
		"takes an empty filter for everything", "parked-refuses",
		brokenParked{purge: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
			req.All = true
			return b.Transport.PurgeParked(ctx, req)
		}},
	},
	{
		"ignores the limit", "parked-limit-and-progress",
		brokenParked{replay: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
			req.Limit = 0
			return b.Transport.ReplayParked(ctx, req)
		}},
	},
	{
		"tells no progress", "parked-limit-and-progress",
		brokenParked{replay: func(b *brokenParked, ctx context.Context, req admin.ParkedRequest) (int, error) {
			req.Progress = nil
			return b.Transport.ReplayParked(ctx, req)
		}},
	},
	{"ignores the rate", "parked-rate", brokenParked{replay: func(b *brokenParked, ctx context.Context,
		req admin.ParkedRequest,
	) (int, error) {
		req.PerSecond = 0
		return b.Transport.ReplayParked(ctx, req)
	}}},
	{"replays what is expired", "parked-expired", brokenParked{replay: func(b *brokenParked, ctx context.Context,
		req admin.ParkedRequest,
	) (int, error) {
		n := 0
		for _, p := range b.Parked(req.Queue) {
			b.Publish(ctx, []waybill.Envelope{p.Envelope})
			n++
		}
		_, err := b.Transport.PurgeParked(ctx, req)
		return n, err
	}}},
	{"purges too much", "parked-purge", brokenParked{purge: func(b *brokenParked, ctx context.Context,
		req admin.ParkedRequest,
	) (int, error) {
		n, err := b.Transport.PurgeParked(ctx, admin.ParkedRequest{Queue: req.Queue, All: true})
		if req.Limit > 0 {
			n = min(n, req.Limit)
		}
		return n, err
	}}},
}

// withoutFilter is a transport whose listing lacks a part of the filter.
func withoutFilter(change func(f *admin.ParkedFilter)) brokenParked {
	return brokenParked{list: func(b *brokenParked, ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
		change(&f)
		return b.Transport.ListParked(ctx, queue, f, limit)
	}}
}

// TE-01, RM-08: every broken transport is caught by the check that is named for it.
func TestBrokenParkedQueuesAreCaught(t *testing.T) { // TE-06
	t.Parallel()
	checks := map[string]transporttest.Check{}
	for _, c := range transporttest.Checks() {
		checks[c.Name] = c
	}
	for _, c := range brokenParkedQueues {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, faults{})
				b := c.broken
				b.Transport = w.mem
				w.tr = &b
				check, ok := checks[c.check]
				if !ok {
					t.Fatalf("there is no check %q", c.check)
				}
				if err := check.Run(t.Context(), w.harness()); err == nil || errors.Is(err, transporttest.ErrNotDeclared) {
					t.Errorf("%s did not catch it: %v", c.check, err)
				} else {
					t.Log(err)
				}
			})
		})
	}
}
