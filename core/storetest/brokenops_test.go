package storetest_test

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
)

// brokenOps is a store whose operator capabilities have a fault.
type brokenOps struct {
	*broken

	before  func(b *brokenOps) // a redrive
	list    func(f *admin.Filter, p *admin.PageRequest)
	listed  func(l *admin.Listing)
	seen    func(st *admin.Stored)
	redrive func(r *admin.RedriveRequest)
	redrove func(r *admin.Redriven, err *error)
	purge   func(r *admin.PurgeRequest)
	purged  func(r *admin.Purged, err *error)
	keys    func(block *bool, after *string)
	blocked func(keys []admin.BlockedKey, more *bool)
	decide  func(b *brokenOps, route, key string, id *string, a *admin.HeadAction) bool
	decided func(err error) error
	stands  func(rec *admin.Stored, in *admin.Hindrances)
	many    func(ctx context.Context, b *brokenOps, req admin.DecideRequest) ([]admin.Decision, error)
}

func (b *brokenOps) Store() core.OutboxStore { return b }

func (b *brokenOps) Inspect(ctx context.Context, route, id string) (admin.Stored, error) {
	st, err := b.inner.Inspect(ctx, route, id)
	spoil(b.seen, &st)
	return st, err
}

func (b *brokenOps) List(ctx context.Context, f admin.Filter, p admin.PageRequest) (admin.Listing, error) {
	if b.list != nil {
		b.list(&f, &p)
	}
	l, err := b.inner.List(ctx, f, p)
	spoil(b.listed, &l)
	return l, err
}

func (b *brokenOps) Redrive(ctx context.Context, req admin.RedriveRequest) (admin.Redriven, error) {
	if b.before != nil {
		b.before(b)
	}
	spoil(b.redrive, &req)
	r, err := b.inner.Redrive(ctx, req)
	if b.redrove != nil {
		b.redrove(&r, &err)
	}
	return r, err
}

func (b *brokenOps) PurgeRecords(ctx context.Context, req admin.PurgeRequest) (admin.Purged, error) {
	spoil(b.purge, &req)
	r, err := b.inner.PurgeRecords(ctx, req)
	if b.purged != nil {
		b.purged(&r, &err)
	}
	return r, err
}

func (b *brokenOps) BlockedKeys(ctx context.Context, req admin.BlockedKeysRequest) ([]admin.BlockedKey, bool, error) {
	if b.keys != nil {
		b.keys(&req.BlockAfterAbandon, &req.After)
	}
	keys, more, err := b.inner.BlockedKeys(ctx, req)
	if b.blocked != nil {
		b.blocked(keys, &more)
	}
	return keys, more, err
}

func (b *brokenOps) Hindrances(ctx context.Context, rec *admin.Stored, block bool) (admin.Hindrances, error) {
	in, err := b.inner.Hindrances(ctx, rec, block)
	if b.stands != nil {
		b.stands(rec, &in)
	}
	return in, err
}

func (b *brokenOps) DecideHead(ctx context.Context, route, key, id string, a admin.HeadAction) error {
	if b.decide != nil && b.decide(b, route, key, &id, &a) {
		return nil
	}
	err := b.inner.DecideHead(b.context(ctx), route, key, id, a)
	if b.decided != nil {
		return b.decided(err)
	}
	return err
}

// above makes the harness of a fault of operators' calls.
func (b brokenOps) above(below *broken) storetest.Harness {
	if b.broken != nil {
		inner := below.inner
		*below = *b.broken
		below.on(inner)
	}
	b.broken = below
	return &b
}

func eachListed(fn func(st *admin.Stored)) brokenOps {
	return brokenOps{listed: func(l *admin.Listing) { each(l.Records, fn) }}
}

func eachKey(fn func(key *admin.BlockedKey)) brokenOps {
	return brokenOps{blocked: func(keys []admin.BlockedKey, _ *bool) { each(keys, fn) }}
}

var opsFaults = []faultyOps{
	{"loses the error", "inspect-shows-one", brokenOps{seen: func(st *admin.Stored) { st.LastError = "" }}},
	{"loses the body", "inspect-shows-one", brokenOps{seen: func(st *admin.Stored) { st.Envelope.Body = nil }}},
	{"shows the whole lease", "inspect-shows-one", brokenOps{seen: func(st *admin.Stored) {
		if st.LeaseIn > 0 {
			st.LeaseIn = storetest.Timeout
		}
	}}},
	{"loses who holds it", "inspect-shows-one", brokenOps{seen: func(st *admin.Stored) { st.Owner = "" }}},
	{"begins again", "list-pages-in-order", brokenOps{list: func(_ *admin.Filter, p *admin.PageRequest) { p.After = 0 }}},
	{"ends early", "list-pages-in-order", brokenOps{listed: func(l *admin.Listing) { l.Next = 0 }}},
	{"skips one", "list-pages-in-order", brokenOps{listed: func(l *admin.Listing) {
		if l.Next > 0 {
			l.Next++
		}
	}}},
	{"hands out bodies", "list-pages-in-order", eachListed(func(st *admin.Stored) { st.Envelope.Body = []byte("x") })},
	{"filters by route alone", "list-filters", brokenOps{list: func(f *admin.Filter,
		_ *admin.PageRequest,
	) {
		*f = admin.Filter{Routes: f.Routes}
	}}},
	{"has no budget", "list-keeps-its-budget", brokenOps{list: func(_ *admin.Filter, p *admin.PageRequest) { p.Budget = 0 }}},
	{"gives up at its budget", "list-keeps-its-budget", brokenOps{listed: func(l *admin.Listing) { l.Next = 0 }}},
	{"ends where its budget does", "ids-are-found-behind-others", brokenOps{listed: func(l *admin.Listing) { l.Next = 0 }}},
	{"looks at few", "ids-are-found-behind-others", brokenOps{seen: func(st *admin.Stored) { *st = admin.Stored{} }}},
	{"takes what it gets", "list-refuses-bad-input", brokenOps{list: func(f *admin.Filter, p *admin.PageRequest) { *f, *p = admin.Filter{}, admin.PageRequest{} }}},
	{"does nothing", "redrive-puts-back", brokenOps{redrive: func(r *admin.RedriveRequest) { r.DryRun = true }}},
	{"does nothing", "redrive-wakes", brokenOps{redrive: func(r *admin.RedriveRequest) { r.DryRun = true }}},
	{"keeps the body", "redrive-repairs", brokenOps{redrive: func(r *admin.RedriveRequest) { r.Body = nil }}},
	{"takes all at once", "redrive-goes-in-steps", brokenOps{redrive: func(r *admin.RedriveRequest) { r.Page.Limit = 0 }}},
	{"ends after a step", "redrive-goes-in-steps", brokenOps{redrove: func(r *admin.Redriven, _ *error) { r.Next = 0 }}},
	{"filters by route alone", "redrive-filters", brokenOps{redrive: func(r *admin.RedriveRequest) { r.Filter = admin.Filter{Routes: r.Filter.Routes} }}},
	{"runs for real", "redrive-dry-run-changes-nothing", brokenOps{redrive: func(r *admin.RedriveRequest) { r.DryRun = false }}},
	{"forces", "redrive-refuses-expired", brokenOps{redrive: func(r *admin.RedriveRequest) { r.Force = true }}},
	{"never forces", "redrive-refuses-expired", brokenOps{redrive: func(r *admin.RedriveRequest) { r.Force = false }}},
	{"forces", "redrive-refuses-beyond-horizon", brokenOps{redrive: func(r *admin.RedriveRequest) { r.Force = true }}},
	{"forces", "redrive-refuses-out-of-order", brokenOps{redrive: func(r *admin.RedriveRequest) { r.Force = true }}},
	{"does not know that the key was blocked", "redrive-refuses-out-of-order", brokenOps{redrive: func(r *admin.RedriveRequest) { r.BlockAfterAbandon = false }}},
	{"takes an empty filter for all", "redrive-asks-for-all", brokenOps{redrive: func(r *admin.RedriveRequest) { r.All = true }}},
	{"hides refusals", "redrive-asks-for-all", brokenOps{redrove: func(_ *admin.Redriven, err *error) { *err = nil }}},
	{"does nothing", "purge-deletes-what-ended", brokenOps{purge: func(r *admin.PurgeRequest) { r.DryRun = true }}},
	{"deletes what waits, too", "purge-deletes-what-ended", brokenOps{purge: func(r *admin.PurgeRequest) { r.Waiting = true }}},
	{"never deletes what waits", "purge-deletes-what-waits-if-asked", brokenOps{purge: func(r *admin.PurgeRequest) { r.Waiting = false }}},
	{"filters by route alone", "purge-filters", brokenOps{purge: func(r *admin.PurgeRequest) { r.Filter = admin.Filter{Routes: r.Filter.Routes} }}},
	{"ignores tenants", "purge-filters", brokenOps{purge: func(r *admin.PurgeRequest) { r.Filter.Tenants = nil }}},
	{"takes all at once", "purge-goes-in-steps", brokenOps{purge: func(r *admin.PurgeRequest) { r.Page.Limit = 0 }}},
	{"ends after a step", "purge-goes-in-steps", brokenOps{purged: func(r *admin.Purged, _ *error) { r.Next = 0 }}},
	{"runs for real", "purge-dry-run-changes-nothing", brokenOps{purge: func(r *admin.PurgeRequest) { r.DryRun = false }}},
	{"does nothing", "purge-frees-dedupe-keys", brokenOps{purge: func(r *admin.PurgeRequest) { r.DryRun = true }}},
	{"tells nobody", "owner-is-notified-of-purge", brokenOps{broken: &mute}},
	{"takes an empty filter for all", "purge-asks-for-all", brokenOps{purge: func(r *admin.PurgeRequest) { r.All = true }}},
	{"hides what cannot be read", "list-shows-what-cannot-be-read", eachListed(func(st *admin.Stored) { st.Err = nil })},
	{"takes what is held", "redrive-takes-no-held", brokenOps{before: func(b *brokenOps) {
		for _, r := range b.last {
			b.inner.Settle(context.Background(), b.self, []core.Outcome{core.Retry(&r, errors.New("taken"), time.Hour)})
		}
	}}},
	{"refuses without a word", "redrive-minds-dedupe-keys", brokenOps{redrove: func(r *admin.Redriven, _ *error) { r.Matched, r.Refused = r.Changed, nil }}},
	{"leaves out what was replaced", "redrive-of-what-was-replaced", brokenOps{redrive: func(r *admin.RedriveRequest) { r.Filter.IDs = nil; r.Filter.States = []core.State{core.StateAbandoned} }}},
	{"forgets that it may have arrived", "redrive-remembers-maybe-sent", brokenOps{broken: new(outcomesOf(core.EventCrashesSpent, func(o core.Outcome, r *core.Record) core.Outcome {
		return core.Abandon(r, o.Reason(), errors.New(o.Error()))
	}))}},
	{"tells nobody", "owner-is-notified-of-redrive", brokenOps{broken: &mute}},
	{"tells nobody", "owner-is-notified-of-decisions", brokenOps{broken: &mute}},
	{"always blocks", "blocked-keys-are-listed", brokenOps{keys: func(block *bool, _ *string) { *block = true }}},
	{"never blocks", "blocked-keys-are-listed", brokenOps{keys: func(block *bool, _ *string) { *block = false }}},
	{"begins again", "blocked-keys-in-pages", brokenOps{keys: func(_ *bool, after *string) { *after = "" }}},
	{"says that this is all", "blocked-keys-in-pages", brokenOps{blocked: func(_ []admin.BlockedKey, more *bool) { *more = false }}},
	{"counts nothing behind", "blocked-keys-are-listed", eachKey(func(key *admin.BlockedKey) { key.Behind = 0 })},
	{"knows no paused topic", "keys-behind-a-paused-topic", eachKey(func(key *admin.BlockedKey) { key.Cause = "retry" })},
	{"counts the head", "keys-behind-a-paused-topic", eachKey(func(key *admin.BlockedKey) { key.Behind++ })},
	{"knows nothing", "waits-are-explained", brokenOps{stands: func(_ *admin.Stored, in *admin.Hindrances) { *in = admin.Hindrances{} }}},
	{"knows no key", "waits-are-explained", brokenOps{stands: func(_ *admin.Stored, in *admin.Hindrances) { in.Ahead = nil }}},
	{"knows no topic", "waits-are-explained", brokenOps{stands: func(_ *admin.Stored, in *admin.Hindrances) { in.Trial = nil }}},
	{"takes the record for the one before it", "waits-are-explained", brokenOps{stands: func(rec *admin.Stored, in *admin.Hindrances) {
		if in.Ahead != nil {
			in.Ahead = rec
		}
	}}},
	{"shows bodies", "waits-are-explained", brokenOps{stands: func(_ *admin.Stored, in *admin.Hindrances) {
		if in.Ahead != nil {
			in.Ahead.Envelope.Body = []byte("body")
		}
	}}},
	{"takes every record for locked", "locks-are-explained", brokenOps{stands: func(_ *admin.Stored, in *admin.Hindrances) { in.Locked = true }}},
	{"does nothing", "head-skip", brokenOps{decide: doesNothing}},
	{"sets aside", "head-skip", brokenOps{decide: as(admin.HeadSetAside)}},
	{"requeues", "head-skip", brokenOps{decide: as(admin.HeadRequeue)}},
	{"skips", "head-set-aside", brokenOps{decide: as(admin.HeadSkip)}},
	{"skips", "head-requeue", brokenOps{decide: as(admin.HeadSkip)}},
	{"skips", "head-of-abandoned-key", brokenOps{decide: as(admin.HeadSkip)}},
	{"does nothing", "head-of-abandoned-key", brokenOps{decide: doesNothing}},
	{"takes the head whatever the id", "head-must-be-the-head", brokenOps{decide: func(b *brokenOps, route, key string, id *string, _ *admin.HeadAction) bool {
		if keys, _, _ := b.inner.BlockedKeys(context.Background(),
			admin.BlockedKeysRequest{Route: route, BlockAfterAbandon: true, Limit: 1}); len(keys) == 1 && keys[0].Key == key {
			*id = keys[0].Head.Envelope.ID
		}
		return false
	}}},
	{"says not found of what is in flight", "head-must-be-the-head", brokenOps{decided: func(err error) error {
		if errors.Is(err, waybill.ErrInFlight) {
			return waybill.ErrNotFound
		}
		return err
	}}},
	{"does nothing", "decide-without-owner", brokenOps{decide: doesNothing}},
	{"waits for an owner that is not there", "decide-without-owner", brokenOps{decided: func(err error) error { return errors.Join(err, waybill.ErrInFlight) }}},
	{"tells nobody", "decide-through-owner", brokenOps{broken: &mute}},
	{"skips", "decide-through-owner", brokenOps{decide: as(admin.HeadSkip)}},
	{"does it instead of the owner", "decide-waits-for-what-is-out", brokenOps{decide: func(b *brokenOps, _, _ string, id *string, _ *admin.HeadAction) bool {
		for _, r := range b.last {
			if r.ID == *id {
				b.inner.Settle(context.Background(), b.self, []core.Outcome{core.Cancel(&r, waybill.ReasonSkipped)})
			}
		}
		return true
	}}},
	{"says that all is well", "decide-waits-for-what-is-out", brokenOps{decided: func(error) error { return nil }}},
	{"says that all is well", "decide-stands-when-nobody-acts", brokenOps{decided: func(error) error { return nil }}},
	{"ignores its context", "decide-heeds-its-context", brokenOps{broken: &broken{deaf: true}}},
	{"accepts everything", "head-refuses-bad-input", brokenOps{decided: func(error) error { return nil }}},
}

func doesNothing(*brokenOps, string, string, *string, *admin.HeadAction) bool { return true }

func as(a admin.HeadAction) func(*brokenOps, string, string, *string, *admin.HeadAction) bool {
	return func(_ *brokenOps, _, _ string, _ *string, action *admin.HeadAction) bool {
		*action = a
		return false
	}
}
