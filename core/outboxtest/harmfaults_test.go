package outboxtest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/core"
)

// folded treats names as equal that fold makes equal: a record that was staged later under such a name is lost.
func folded(fold func(s string) string, of func(r *core.StagedRow) *string) fault {
	return fault{rowsIn: func(rows []core.StagedRow) {
		for i := range rows {
			s := of(&rows[i])
			*s = fold(*s)
		}
	}}
}

func rowID(r *core.StagedRow) *string    { return &r.Envelope.ID }
func rowKey(r *core.StagedRow) *string   { return &r.Envelope.Key }
func rowRoute(r *core.StagedRow) *string { return &r.Route }

// caps answers at most n records and does not say that there are more.
func caps(n int) fault {
	return pages(func(p *core.ReadResult) {
		for i := range p.Ranges {
			if rs := p.Ranges[i].Records; len(rs) > n {
				p.Ranges[i].Records = rs[:n]
			}
		}
	})
}

// shared lets the first range use up the limit, or the bytes, of all.
func shared(limit bool) fault {
	return fault{page: func(_ *broken, l *core.ReadRequest, p *core.ReadResult) {
		n, bytes := 0, int64(0)
		for i := range p.Ranges {
			p.Ranges[i].Records = slices.DeleteFunc(p.Ranges[i].Records, func(r core.Record) bool {
				bytes += int64(len(r.Envelope.Body))
				n++
				return limit && n > l.Ranges[0].Limit || !limit && bytes > l.Bytes
			})
		}
	}}
}

// fails makes stagers fail beside a method, now and then.
func failsStagers() fault {
	return fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		b.deadlock.Store(true)
		return b.store.Hold(ctx, self, w)
	}}
}

var harmFaults = []faulty{
	{"settles a zero Outcome", "zero-outcome-is-refused", results(func(res core.Results) {
		for i := range res {
			res[i] = nil
		}
	})},
	{"fails all for a zero Outcome", "zero-outcome-is-refused", allFail},
	{"takes a negative limit for none", "bad-limits-do-no-harm", fault{due: func(ctx context.Context, b *broken, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
		if limit < 1 {
			limit = 1000
		}
		return b.store.Due(ctx, self, parts, limit)
	}}},
	{"takes without a number", "bad-limits-do-no-harm", holdRequests(func(_ *broken, w *core.HoldRequest) {
		if len(w.Refs) == 0 {
			w.KeylessLimit = max(w.KeylessLimit, 1)
		}
	})},
	{"cuts a page without a word", "bad-limits-do-no-harm", fault{page: func(_ *broken, l *core.ReadRequest, p *core.ReadResult) {
		for i := range p.Ranges {
			if l.Ranges[i].Limit < 1 {
				p.Ranges[i] = core.Records{}
			}
		}
	}}},
	{"takes for nobody", "nobody-is-no-session", fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		if self == 0 {
			return nil, nil
		}
		return b.store.Hold(ctx, self, w)
	}}},
	{"releases for nobody", "nobody-is-no-session", releases(func(r *releaseCall) {
		if r.self == 0 {
			r.self = r.owner(r.partition.Partition.Route, r.partition.Partition.From)
		}
	})},
	{"knows nobody", "nobody-is-no-session", pages(func(p *core.ReadResult) { p.IsMember = true })},
	{"divides one limit", "ranges-have-their-own-limits", shared(true)},
	{"divides the bytes", "ranges-have-their-own-limits", shared(false)},
	{"answers the first range only", "ranges-have-their-own-limits", pages(func(p *core.ReadResult) {
		for i := 1; i < len(p.Ranges); i++ {
			p.Ranges[i] = core.Records{}
		}
	})},
	{"blocks on the first route only", "blocks-on-each-route", looks(func(l *core.ReadRequest) {
		l.BlockingRoutes = l.BlockingRoutes[:min(len(l.BlockingRoutes), 1)]
	})},
	{"shows waiting records of the first part only", "blocks-on-each-route", looks(func(l *core.ReadRequest) {
		l.NewlyOwned = l.NewlyOwned[:min(len(l.NewlyOwned), 1)]
	})},
	{"has a bound of its own", "large-answers-are-whole", caps(1000)},
	{"has a bound of its own for retries", "large-answers-are-whole", dues(func(p *core.DueResult) {
		if len(p.Retries) > 500 {
			p.Retries, p.NextIn = p.Retries[:500], -1
		}
	})},
	{"has a bound of its own for what waits", "large-answers-are-whole", pages(func(p *core.ReadResult) {
		p.Blocking = p.Blocking[:min(len(p.Blocking), 1000)]
	})},
	{"compares keys without case", "names-are-compared-exactly", folded(strings.ToLower, rowKey)},
	{"compares keys without spaces at the end", "names-are-compared-exactly", folded(func(s string) string { return strings.TrimRight(s, " ") }, rowKey)},
	{"compares ids without case", "names-are-compared-exactly", folded(strings.ToLower, rowID)},
	{"compares ids without accents", "names-are-compared-exactly", folded(strings.NewReplacer("é", "e\u0301").Replace, rowID)},
	{"compares routes without case", "names-are-compared-exactly", folded(strings.ToLower, rowRoute)},
	{"compares routes without spaces at the end", "names-are-compared-exactly", folded(strings.TrimSpace, rowRoute)},
	{"settles by another id", "names-are-compared-exactly", anyID},
	{"leaves keys out without case", "names-are-compared-exactly", looks(func(l *core.ReadRequest) {
		for i := range l.Ranges {
			for _, key := range slices.Clone(l.Ranges[i].ExcludeKeys) {
				l.Ranges[i].ExcludeKeys = append(l.Ranges[i].ExcludeKeys, strings.Replace(key, "NAME", "name", 1))
			}
		}
	})},
	{"counts up to three crashes", "crashes-count-to-ten", records(func(r *core.Record) { r.Crashes = min(r.Crashes, 3) })},
	{"counts up to nine crashes", "crashes-count-to-ten", records(func(r *core.Record) { r.Crashes = min(r.Crashes, 9) })},
	{"retries at once what waits for long", "long-delays-are-kept", outcomes(func(o core.Outcome, r *core.Record) core.Outcome {
		if o.In() > 24*time.Hour {
			return core.Retry(r, errors.New(o.Error()), 0)
		}
		return o
	})},
	{"cuts long delays", "long-delays-are-kept", eachRow(func(r *core.StagedRow) { r.Delay = min(r.Delay, 100*24*time.Hour) })},
	{"forgets timers beside retries", "next-in-counts-beside-retries", dues(func(p *core.DueResult) {
		if len(p.Retries) > 0 {
			p.NextIn = -1
		}
	})},
	{"makes stagers fail", "stagers-do-not-fail-beside-members", failsStagers()},
}
