package checker_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// brokenStore is a store with one of its promises broken.
type brokenStore struct {
	core.OutboxStore
	heartbeat func(ctx context.Context, s core.OutboxStore, m *core.HeartbeatRequest)
	met       func(m *core.HeartbeatRequest, r *core.Membership)
	read      func(self core.Session, result *core.ReadResult)
	release   func(u *core.PartitionState, out []core.Ref) []core.Ref
	settle    func(o []core.Outcome) []core.Outcome
}

func (b *brokenStore) Unwrap() any { return b.OutboxStore }

func (b *brokenStore) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	if b.heartbeat != nil {
		b.heartbeat(ctx, b.OutboxStore, &m)
	}
	r, err := b.OutboxStore.Heartbeat(ctx, m)
	if err == nil && b.met != nil {
		b.met(&m, &r)
	}
	return r, err
}

func (b *brokenStore) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	p, err := b.OutboxStore.Read(ctx, self, request)
	if err == nil && b.read != nil {
		b.read(self, &p)
	}
	return p, err
}

func (b *brokenStore) ReleasePartition(ctx context.Context, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
	if b.release != nil {
		out = b.release(&u, out)
	}
	return b.OutboxStore.ReleasePartition(ctx, self, u, out)
}

func (b *brokenStore) Settle(ctx context.Context, self core.Session, o []core.Outcome) core.Results {
	if b.settle == nil {
		return b.OutboxStore.Settle(ctx, self, o)
	}
	stored := b.settle(o)
	// the others have the answer too that all is well
	return append(b.OutboxStore.Settle(ctx, self, stored), make(core.Results, len(o)-len(stored))...)
}

type brokenBus struct {
	core.Publisher
	publish func(ctx context.Context, p core.Publisher, batch []waybill.Envelope) core.Results
}

func (b brokenBus) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	return b.publish(ctx, b.Publisher, batch)
}

type brokenInbox struct {
	store *memory.Store
	do    func(s *memory.Store, ctx context.Context, key core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error)
}

func (b brokenInbox) Do(ctx context.Context, key core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error) {
	return b.do(b.store, ctx, key, fn)
}

// seldom reports true once in so many calls.
func seldom(n int64) func() bool {
	var calls atomic.Int64
	return func() bool { return calls.Add(1)%n == 0 }
}

// A verifier that finds nothing proves nothing: each of these breaks is found. So is each of the lines that
// internal/mutants breaks.
func TestBroken(t *testing.T) {
	t.Parallel()
	leaves := seldom(10) // over all histories: most have fewer pages of several records
	store := func(make func() *brokenStore) breaks {
		return breaks{store: func(s core.OutboxStore) core.OutboxStore {
			b := make()
			b.OutboxStore = s
			return b
		}}
	}
	bus := func(n int64, publish func(ctx context.Context, p core.Publisher, batch []waybill.Envelope) core.Results) breaks {
		now := seldom(n)
		return breaks{bus: func(p core.Publisher) core.Publisher {
			return brokenBus{p, func(ctx context.Context, p core.Publisher, batch []waybill.Envelope) core.Results {
				if !now() {
					return p.Publish(ctx, batch)
				}
				return publish(ctx, p, batch)
			}}
		}}
	}
	box := func(do func(s *memory.Store, ctx context.Context, key core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error)) breaks {
		return breaks{inbox: func(i core.Inbox[*memory.Tx]) core.Inbox[*memory.Tx] {
			return brokenInbox{i.(*memory.Store), do} //nolint:forcetypeassert // it is
		}}
	}
	for _, tc := range []struct {
		name, finds string
		broken      breaks
	}{
		{"pages leave a record out", "order|late|stalled", store(func() *brokenStore {
			return &brokenStore{read: func(_ core.Session, p *core.ReadResult) {
				for i := range p.Ranges {
					if r := &p.Ranges[i]; len(r.Records) > 1 && leaves() {
						r.Records = r.Records[1:]
					}
				}
			}}
		})},
		{"partitions are taken from their owners", "partitions", store(func() *brokenStore {
			return &brokenStore{heartbeat: func(ctx context.Context, s core.OutboxStore, m *core.HeartbeatRequest) {
				r, err := s.Heartbeat(ctx, core.HeartbeatRequest{})
				if err != nil {
					return
				}
				for i := range r.Partitions {
					if u := &r.Partitions[i]; u.Owner != 0 && u.Owner != m.Self.Session {
						m.Transfers = append(m.Transfers, core.Transfer{Partition: u.Partition, From: u.Owner, To: m.Self.Session})
					}
				}
			}}
		})},
		{"the heartbeats of others stand still", "removed", store(func() *brokenStore {
			first := map[core.Session]int64{}
			real := map[core.Session]int64{}
			return &brokenStore{
				heartbeat: func(_ context.Context, _ core.OutboxStore, m *core.HeartbeatRequest) {
					for i := range m.Evict {
						m.Evict[i].Heartbeats = real[m.Evict[i].Session]
					}
				},
				met: func(m *core.HeartbeatRequest, r *core.Membership) {
					for i := range r.Members {
						x := &r.Members[i]
						if real[x.Session] = x.Heartbeats; x.Session == m.Self.Session {
							continue
						}
						if _, ok := first[x.Session]; !ok {
							first[x.Session] = x.Heartbeats
						}
						x.Heartbeats = first[x.Session]
					}
				},
			}
		})},
		{"partitions are released without holds", "two", store(func() *brokenStore {
			return &brokenStore{release: func(*core.PartitionState, []core.Ref) []core.Ref { return nil }}
		})},
		{"free partitions are shown to nobody", "late|stalled|shares", store(func() *brokenStore {
			return &brokenStore{met: func(_ *core.HeartbeatRequest, r *core.Membership) {
				r.Partitions = slices.DeleteFunc(r.Partitions, func(u core.PartitionState) bool { return u.Owner == 0 && u.Term > 1 })
			}}
		})},
		{"open transactions count as ended", "late|stalled|order", store(func() *brokenStore {
			return &brokenStore{read: func(_ core.Session, p *core.ReadResult) { p.RunningTxs = nil }}
		})},
		{"nobody hears of commands", "late|stalled", store(func() *brokenStore {
			return &brokenStore{read: func(_ core.Session, p *core.ReadResult) { p.Notices = nil }}
		})},
		{"holds of others are not shown", "two|overlap|fencing|order", store(func() *brokenStore {
			return &brokenStore{read: func(self core.Session, p *core.ReadResult) {
				hide := func(records []core.Record) {
					for i := range records {
						if records[i].HeldBy != self {
							records[i].HeldBy = 0
						}
					}
				}
				p.Blocking = slices.DeleteFunc(p.Blocking, func(w core.BlockingRecord) bool { return w.Why == core.BlockedByHold })
				for i := range p.Ranges {
					hide(p.Ranges[i].Records)
				}
				for i := range p.Keys {
					hide(p.Keys[i].Records)
					p.Keys[i].Blocking = slices.DeleteFunc(p.Keys[i].Blocking, func(w core.BlockingRecord) bool { return w.Why == core.BlockedByHold })
				}
				hide(p.Rechecked)
			}}
		})},
		{"a settle stores retries as published", "lost", store(func() *brokenStore {
			return &brokenStore{settle: func(o []core.Outcome) []core.Outcome {
				o = slices.Clone(o)
				for i := range o {
					if o[i].Event() == core.EventAttemptFailed {
						o[i] = core.Published(&core.Record{Ref: o[i].Ref(), Slot: o[i].Slot()})
					}
				}
				return o
			}}
		})},
		{"settles are not stored", "stalled|overlap|fencing|lost", store(func() *brokenStore {
			return &brokenStore{settle: func(o []core.Outcome) []core.Outcome { return o[:0] }}
		})},
		{"confirmed, but not routed", "lost", bus(20, func(_ context.Context, _ core.Publisher, batch []waybill.Envelope) core.Results {
			return make(core.Results, len(batch))
		})},
		{"bodies get mixed up", "changed", bus(20, func(ctx context.Context, p core.Publisher, batch []waybill.Envelope) core.Results {
			for i := range batch {
				batch[i].Body = batch[0].Body
				batch[i].Key = "x"
			}
			return p.Publish(ctx, batch)
		})},
		{"refusals of the broker's own making", "attempts|state", bus(20, func(_ context.Context, _ core.Publisher, batch []waybill.Envelope) core.Results {
			return core.AllFailed(len(batch), errors.New("no"))
		})},
		{"an inbox without marks", "effects", box(func(s *memory.Store, ctx context.Context, _ core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error) {
			tx := s.Begin()
			defer tx.Rollback()
			if err := fn(ctx, tx); err != nil {
				return core.InboxNone, err
			}
			return core.InboxNew, tx.Commit()
		})},
		{"an inbox that keeps the marks of failures", "effects", box(func(s *memory.Store, ctx context.Context, key core.InboxKey, fn func(context.Context, *memory.Tx) error) (core.InboxStatus, error) {
			st, err := s.Do(ctx, key, func(context.Context, *memory.Tx) error { return nil })
			if err != nil || st == core.InboxDuplicate {
				return st, err
			}
			tx := s.Begin()
			defer tx.Rollback()
			if err := fn(ctx, tx); err != nil {
				return core.InboxNone, err
			}
			return core.InboxNew, tx.Commit()
		})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(300) {
				problems, _ := history(t, seed, &tc.broken)
				if len(problems) > 0 {
					t.Logf("found in history %d: %s", seed+1, problems[0])
					if !regexp.MustCompile(`at \d+: (` + tc.finds + `)`).MatchString(strings.Join(problems, "\n")) {
						t.Errorf("not found for what it is: %s", strings.Join(problems, "\n"))
					}
					return
				}
			}
			t.Error("not found in 300 histories")
		})
	}
}
