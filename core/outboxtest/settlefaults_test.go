package outboxtest_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// unclassed answers refusals without a class.
var unclassed = results(func(res core.Results) {
	for i, err := range res {
		if e, ok := errors.AsType[*waybill.Error](err); ok && e.Class == waybill.ClassRejected {
			res[i] = e.Err
		}
	}
})

// anyVersion settles a record of any version.
var anyVersion = fault{outcome: func(_ *broken, o core.Outcome, r *core.Record) core.Outcome {
	if o.Ref().ID != r.ID {
		return o
	}
	return again(&o, r)
}}

// anyID settles the record with the number, under any id.
var anyID = fault{outcome: func(_ *broken, o core.Outcome, r *core.Record) core.Outcome { return again(&o, r) }}

// ownersOnly refuses a record that a session holds in the partition of another.
var ownersOnly = refuses(func(b *broken, self core.Session, o *core.Outcome) error {
	if b.owner(o.Ref().Route, o.Slot()) != self {
		return core.ErrFenced
	}
	return nil
})

var allFail = results(func(res core.Results) {
	if err := res.FirstErr(); err != nil {
		copy(res, core.AllFailed(len(res), err))
	}
})

// byFirst settles a group as if all of it were the first member's.
var byFirst = fault{group: func(ctx context.Context, b *broken, selves []core.Session, os [][]core.Outcome) bool {
	return b.store.Settle(ctx, selves[0], slices.Concat(os...)).FirstErr() == nil
}}

// saysStored says of each group that it is stored.
var saysStored = fault{group: func(ctx context.Context, b *broken, selves []core.Session, os [][]core.Outcome) bool {
	b.oneByOne(ctx, selves, os)
	return true
}}

var settleFaults = []faulty{
	{"does not hold retries", "due-holds-retries", fault{due: func(ctx context.Context, b *broken, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
		p, err := b.store.Due(ctx, self, parts, limit)
		for i := range p.Retries {
			b.store.Settle(ctx, self, []core.Outcome{core.Release(&p.Retries[i], 0, false)})
		}
		return p, err
	}}},
	{"forgets attempts", "due-holds-retries", eachRetry(func(r *core.Record) { r.Attempts = 0 })},
	{"answers retries once", "due-repeats", duesOf(func(b *broken, _ core.Session, p *core.DueResult) {
		p.Retries = slices.DeleteFunc(p.Retries, func(r core.Record) bool {
			_, was := b.rows[r.ID]
			b.rows[r.ID] = r
			return was
		})
	})},
	{"answers what is held although it is told not to", "due-new-leaves-out-own", dueRequests(func(_ *broken, _ core.Session, parts *[]core.RouteSlots, _ *int) {
		(*parts)[0].DueExcludeHeld = false
	})},
	{"does not say that more is held", "due-new-leaves-out-own", dues(func(p *core.DueResult) {
		if p.NextIn == 0 {
			p.NextIn = -1
		}
	})},
	{"ignores the limit", "due-keeps-to-its-limit", dueRequests(func(_ *broken, _ core.Session, _ *[]core.RouteSlots, limit *int) { *limit++ })},
	{"forgets that there is more", "due-keeps-to-its-limit", dues(func(p *core.DueResult) { p.NextIn = -1 })},
	{"answers what others hold", "due-leaves-others-retries", duesOf(func(b *broken, self core.Session, p *core.DueResult) {
		for _, st := range b.store.States() {
			if st.State == core.StateFailed && st.Holder != self && st.Holder != 0 {
				ref := core.Ref{Route: st.Route, Seq: st.Seq, ID: st.ID, Version: st.Version}
				p.Retries = append(p.Retries, core.Record{Ref: ref, HeldBy: self})
			}
		}
	})},
	{"never answers what another held", "due-leaves-others-retries", duesOf(func(b *broken, self core.Session, p *core.DueResult) {
		p.Retries = slices.DeleteFunc(p.Retries, func(r core.Record) bool {
			ref := core.Ref{ID: r.ID}
			if b.holds[ref] == 0 {
				b.holds[ref] = self
			}
			return b.holds[ref] != self
		})
	})},
	{"tells each caller of a timer", "timers-get-greater-numbers-once", dues(func(p *core.DueResult) { p.TimersReady *= 2 })},
	{"puts timers in line with their numbers", "timers-get-greater-numbers-once", fault{record: func(r *core.Record) { r.Seq = max(r.Seq-30, 1) }}},
	{"has timers in line at once", "timers-get-greater-numbers-once", eachRow(func(r *core.StagedRow) { r.Delay = 0 })},
	{"ignores versions", "moved-timer-is-a-new-version", anyVersion},
	{"is late by 50 ms", "next-in-is-exact", dues(func(p *core.DueResult) {
		if p.NextIn > 0 {
			p.NextIn += 50 * time.Millisecond
		}
	})},
	{"answers 0 for nothing", "next-in-is-exact", dues(func(p *core.DueResult) { p.NextIn = max(p.NextIn, 0) })},
	{"brings due behind locks", "due-leaves-what-is-locked", fault{waits: "due"}},
	{"locks what it repeats", "due-repeats-what-is-locked", duesOf(func(b *broken, _ core.Session, p *core.DueResult) {
		p.Retries = slices.DeleteFunc(p.Retries, func(r core.Record) bool {
			_, was := b.rows[r.ID]
			b.rows[r.ID] = r
			return was && b.locks > 0
		})
	})},
	{"brings due for others", "due-keeps-to-own-slots", fault{due: func(ctx context.Context, b *broken, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
		var all core.DueResult
		for _, part := range parts {
			for s := range uint8(core.NumSlots) {
				if part.Slots.Has(s) {
					part.Slots = 1 << s
					p, _ := b.store.Due(ctx, b.owner(part.Route, s), []core.RouteSlots{part}, limit)
					part.Slots = core.AllSlots
					for i := range p.Retries {
						p.Retries[i].HeldBy = self
					}
					all.Retries, all.TimersReady = append(all.Retries, p.Retries...), all.TimersReady+p.TimersReady
				}
			}
		}
		return all, nil
	}}},
	{"brings nothing due beside what is another's", "due-keeps-to-own-slots", dueRequests(func(_ *broken, _ core.Session, parts *[]core.RouteSlots, _ *int) {
		*parts = (*parts)[:1]
	})},

	{"leaves out a part that is not owned as a whole", "due-leaves-out-slots-alone", dueRequests(func(b *broken, self core.Session, parts *[]core.RouteSlots, _ *int) {
		*parts = slices.DeleteFunc(*parts, func(p core.RouteSlots) bool {
			for s := range uint8(core.NumSlots) {
				if p.Slots.Has(s) && b.owner(p.Route, s) != self {
					return true
				}
			}
			return false
		})
	})},

	{"ignores versions", "settle-twice-applies-once", anyVersion},
	{"ignores versions", "settle-at-once-applies-once", anyVersion},
	{"settles behind locks", "settle-of-locked-is-busy-alone", fault{waits: "settle"}},
	{"fails as a whole", "settle-of-locked-is-busy-alone", allFail},
	{"says that what is locked has changed", "settle-of-locked-is-busy-alone", answersFor(core.ErrLocked, core.ErrChanged)},
	{"ignores versions", "stale-version-changes-nothing", anyVersion},
	{"says that stale outcomes are fine", "stale-version-changes-nothing", forgives(core.ErrChanged)},
	{"compares the version of what was published", "published-needs-no-version", refuses(func(b *broken, _ core.Session, o *core.Outcome) error {
		if r := b.at(o.Ref()); r == nil || r.Ref != o.Ref() {
			return core.ErrChanged
		}
		return nil
	})},
	{"ignores ids", "wrong-id-changes-nothing", anyID},
	{"says that other ids are fine", "wrong-id-changes-nothing", forgives(core.ErrChanged)},
	{"settles for who lost the partition", "lost-partition-fences-but-published", settlesFenced(func(b *broken, o *core.Outcome) core.Session {
		return b.owner(o.Ref().Route, o.Slot())
	})},
	{"refuses without a class", "lost-partition-fences-but-published", unclassed},
	{"refuses stale versions without a class", "stale-version-changes-nothing", unclassed},
	{"says that who lost the partition has settled", "lost-partition-fences-but-published", forgives(core.ErrFenced)},
	{"refuses what was published", "lost-partition-fences-but-published", ownersOnly},
	{"settles for owners only", "hold-settles-without-the-partition", ownersOnly},
	{"fails as a whole", "one-refused-outcome-is-alone", allFail},
	{"answers backwards", "one-refused-outcome-is-alone", results(func(res core.Results) { slices.Reverse(res) })},
	{"has a new version with each hold", "version-grows-with-changes-only", fault{page: func(b *broken, _ *core.ReadRequest, p *core.ReadResult) {
		eachRecord(p, func(r *core.Record) {
			if b.holds[r.Ref] != 0 {
				r.Version++
			}
		})
	}}},
	{"has one version", "version-grows-with-changes-only", pages(func(p *core.ReadResult) {
		each(p.RecheckedBlocking, func(w *core.BlockingRecord) { w.Version = 1 })
	})},

	{"ignores versions", "late-release-leaves-a-newer-hold", anyVersion},
	{"says that what is gone has changed", "published-of-gone-is-nil", fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		gone := make([]bool, len(os))
		for i := range os {
			gone[i] = os[i].Event() == core.EventConfirmed && b.at(os[i].Ref()) == nil
		}
		res := b.store.Settle(ctx, self, os)
		for i := range res {
			if gone[i] && res[i] == nil {
				res[i] = core.ErrChanged
			}
		}
		return res
	}}},
	{"says to removed sessions that what is gone is published", "published-of-gone-is-nil", forgives(core.ErrFenced)},

	{"releases what was published", "published-does-not-come-again", outcomesOf(core.EventConfirmed, func(_ core.Outcome, r *core.Record) core.Outcome {
		return core.Release(r, 0, false)
	})},
	{"retries at once", "retry-counts-and-waits", outcomesOf(core.EventAttemptFailed, func(o core.Outcome, r *core.Record) core.Outcome {
		return core.Retry(r, errors.New(o.Error()), 0)
	})},
	{"counts no attempts", "retry-counts-and-waits", eachRetry(func(r *core.Record) { r.Attempts = 1 })},
	{"counts a retry without an attempt as one", "retry-without-attempt", outcomes(func(o core.Outcome, r *core.Record) core.Outcome {
		if o.Event() == core.EventAttemptFailed && !o.CountsAttempt() {
			return core.Retry(r, errors.New(o.Error()), o.In())
		}
		return o
	})},
	{"releases a retry without an attempt", "retry-without-attempt", outcomes(func(o core.Outcome, r *core.Record) core.Outcome {
		if o.Event() == core.EventAttemptFailed && !o.CountsAttempt() {
			return core.Release(r, o.In(), false)
		}
		return o
	})},
	{"stores no error", "retry-keeps-last-error", outcomesOf(core.EventAttemptFailed, func(o core.Outcome, r *core.Record) core.Outcome {
		return core.Retry(r, nil, o.In())
	})},
	{"tries what was abandoned", "abandoned-is-terminal", outcomes(func(o core.Outcome, r *core.Record) core.Outcome {
		if o.State() == core.StateAbandoned {
			return core.Retry(r, errors.New(o.Error()), 0)
		}
		return o
	})},
	{"has one reason", "abandoned-is-terminal", outcomes(func(o core.Outcome, r *core.Record) core.Outcome {
		if o.State() == core.StateAbandoned {
			return core.Abandon(r, waybill.ReasonRejected, errors.New(o.Error()))
		}
		return o
	})},
	{"counts a decision as an attempt", "cancelled-counts-nothing", outcomesOf(core.EventCancelled, func(o core.Outcome, r *core.Record) core.Outcome {
		return core.Abandon(r, o.Reason(), nil)
	})},
	{"has one reason for decisions", "cancelled-counts-nothing", outcomesOf(core.EventCancelled, func(_ core.Outcome, r *core.Record) core.Outcome {
		return core.Cancel(r, waybill.ReasonCancelled)
	})},
	{"counts a release as an attempt", "release-costs-nothing", outcomesOf(core.EventReleased, func(_ core.Outcome, r *core.Record) core.Outcome {
		return core.Retry(r, nil, 0)
	})},
	{"keeps the hold of what is released", "release-costs-nothing", fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		if os[0].Event() == core.EventReleased {
			return make(core.Results, len(os))
		}
		return b.store.Settle(ctx, self, os)
	}}},
	{"ignores the delay of a release", "released-retry-waits-on", outcomesOf(core.EventReleased, func(_ core.Outcome, r *core.Record) core.Outcome {
		return core.Release(r, 0, false)
	})},
	{"never deletes notices", "notice-done-deletes-the-notice", fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		res := make(core.Results, len(os))
		for i := range os {
			if os[i].NoticeNumber() == 0 || b.owner(b.store.States()[0].Route, 0) != self {
				res[i] = b.store.Settle(ctx, self, os[i:i+1])[0]
			}
		}
		return res
	}}},
	{"forgets the reason of a decision", "decision-notice-has-its-reason", eachNotice(func(n *core.Notice) { n.Reason = "" })},
	{"takes a decision for another change of its key", "decision-notice-has-its-reason", eachNotice(func(n *core.Notice) { n.Kind = core.NoticeKey })},
	{"has a notice done for all by one", "notice-from-waits-for-all-owners", fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		for i := range os {
			if b.owner(os[i].Ref().Route, 0) == self {
				b.store.noticeDone(ctx, b.owner(os[i].Ref().Route, 63), os[i].NoticeNumber())
			}
		}
		return b.store.Settle(ctx, self, os)
	}}},
	{"tells one owner of what concerns all", "notice-from-waits-for-all-owners", fault{page: func(_ *broken, l *core.ReadRequest, p *core.ReadResult) {
		if !l.Slots[0].Slots.Has(0) {
			p.Notices = nil
		}
	}}},
	{"deletes notices for removed sessions", "notice-done-deletes-the-notice", forgives(core.ErrFenced)},

	{"has other slots", "slot-is-the-same-everywhere", records(func(r *core.Record) { r.Slot ^= 1 })},
	{"has other slots for some keys", "slot-is-the-same-everywhere", records(func(r *core.Record) {
		if r.Envelope.Key == "鍵" {
			r.Slot ^= 1
		}
	})},
	{"changes its traits", "traits-are-stable", fault{traits: func(b *broken, t *core.StoreTraits) {
		t.Durable = b.count%2 == 1
		b.count++
	}}},
	{"hands its own bodies out", "store-keeps-no-slice", fault{page: func(b *broken, _ *core.ReadRequest, p *core.ReadResult) {
		eachRecord(p, func(r *core.Record) {
			if first, ok := b.rows[r.ID]; ok {
				*r = first
			}
			b.rows[r.ID] = *r
		})
	}}},
	{"hides a restore", "restore-is-seen", fault{page: func(b *broken, _ *core.ReadRequest, p *core.ReadResult) {
		b.last = max(b.last, p.LastSeq)
		p.StoreEpoch, p.LastSeq = "", b.last
	}, membership: func(_ *broken, _ *core.HeartbeatRequest, r *core.Membership) { r.StoreEpoch = "" }}},
	{"ignores ids", "number-drawn-again-is-untouched", anyID},

	{"ends every hold", "release-leaves-the-hold-of-another", fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		res := make(core.Results, len(os))
		for i, o := range os {
			by := self
			if r := b.at(o.Ref()); r != nil && r.HeldBy != 0 && o.Event() == core.EventReleased {
				by = r.HeldBy
			}
			res[i] = b.store.Settle(ctx, by, os[i:i+1])[0]
		}
		return res
	}}},

	{"refuses each group", "group-settles-for-each-member", fault{group: func(context.Context, *broken, []core.Session, [][]core.Outcome) bool { return false }}},
	{"settles for the first member of a group only", "group-settles-for-each-member", fault{group: func(ctx context.Context, b *broken, selves []core.Session, os [][]core.Outcome) bool {
		return b.oneByOne(ctx, selves[:1], os[:1])
	}}},
	{"settles for a removed member", "group-with-a-removed-session-is-refused", byFirst},
	{"says that the settle of a removed member is stored", "group-with-a-removed-session-is-refused", saysStored},
	{"says that a locked record is settled", "group-with-a-locked-record-is-refused", saysStored},
	{"waits for a locked record", "group-with-a-locked-record-is-refused", fault{waits: "settle group"}},
	{"says that another record is settled", "group-with-another-record-is-refused", saysStored},
	{"settles another record", "group-with-another-record-is-refused", anyID},
}
