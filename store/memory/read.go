package memory

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// The store in memory is the reference of the contract, and the fake of tests: it has indexes where a database has
// them, so that its costs grow in the same way, and one lock instead of a snapshot. All parts of a look are answered
// under it.

// Read answers all parts of look, as core.OutboxStore says. A limit of 0 or less is no limit.
func (s *Store) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	if err := ctx.Err(); err != nil {
		return core.ReadResult{}, outage("read", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[self]
	if m == nil {
		return core.ReadResult{}, nil
	}
	rd := reader{s: s, self: self, request: &request, now: s.now()}
	p := core.ReadResult{IsMember: true, Suspected: m.Suspected, StoreEpoch: s.epoch(), LastSeq: s.seq, SnapshotXmax: s.lastTx + 1}
	if s.seq != request.KnownLastSeq || s.told != request.KnownLastNotice {
		p.LastSeqXmax = p.SnapshotXmax
	}
	for _, tx := range s.running {
		p.RunningTxs = append(p.RunningTxs, tx.id)
	}
	for _, part := range request.Slots {
		var own core.Slots
		if rt := s.routes[part.Route]; rt != nil {
			own = rt.owned(self) & part.Slots
		}
		p.Owned = append(p.Owned, own)
	}
	p.Blocking, p.MoreBlocking = rd.fresh()
	for i := range request.Ranges {
		p.Ranges = append(p.Ranges, rd.span(&request.Ranges[i]))
		s.looked(m, request.Ranges[i].Route)
	}
	for i := range request.Keys {
		p.Keys = append(p.Keys, rd.key(&request.Keys[i]))
	}
	rd.again(&p)
	p.Notices, p.LastNotice = s.notices(request.Slots, request.AfterNotice), s.told
	return p, nil
}

// reader answers the parts of one ReadRequest.
type reader struct {
	s       *Store
	self    core.Session
	request *core.ReadRequest
	now     time.Time
}

// fresh returns the waiting records of ReadRequest.NewlyOwned, by sequence.
func (rd *reader) fresh() (waiting []core.BlockingRecord, more bool) {
	limit := rd.request.BlockingLimit
	for _, part := range merge(rd.request.NewlyOwned) {
		rt := rd.s.routes[part.Route]
		if rt == nil {
			continue
		}
		block, n := slices.Contains(rd.request.BlockingRoutes, part.Route), 0
		for r := range rt.unready.after(0, rd.request.NewlyOwnedAfter) {
			if limit > 0 && n > limit {
				break
			}
			if !part.Slots.Has(r.slot) {
				continue
			}
			if w, ok := r.obstructs(rd.self, block); ok {
				waiting = append(waiting, w)
				n++
			}
		}
	}
	slices.SortStableFunc(waiting, func(a, b core.BlockingRecord) int { return cmp.Compare(a.Seq, b.Seq) })
	if limit <= 0 || len(waiting) <= limit {
		return waiting, false
	}
	return waiting[:limit], true
}

// span answers a range.
func (rd *reader) span(rg *core.Range) core.Records {
	rt := rd.s.routes[rg.Route]
	if rt == nil {
		return core.Records{}
	}
	exclude, skip := set(rg.ExcludeKeys), set(rg.ExcludeSeqs)
	return rd.collect(rt.ready.after(0, rg.AfterSeq), rg.UpToSeq, rg.Limit, func(r *record) bool {
		if !rg.Slots.Has(r.slot) || rg.KeyedOnly && r.env.Key == "" || skip[r.seq] {
			return false
		}
		return r.env.Key == "" || !exclude[r.env.Key]
	})
}

// key answers a range of a key.
func (rd *reader) key(kr *core.KeyRange) (out core.KeyRecords) {
	rt := rd.s.routes[kr.Route]
	if rt == nil || rt.keys[kr.Key] == nil {
		return out
	}
	k := rt.keys[kr.Key]
	got := rd.collect(k.ready.after(0, kr.AfterSeq), kr.UpToSeq, kr.Limit, func(*record) bool { return true })
	out.Records, out.More = got.Records, got.More
	block := slices.Contains(rd.request.BlockingRoutes, kr.Route)
	for r := range k.unready.all() {
		if w, ok := r.obstructs(rd.self, block); ok {
			out.Blocking = append(out.Blocking, w)
		}
	}
	return out
}

// collect returns the wanted ones of records up to sequence to, within the limits. The first one comes with any size:
// otherwise a body above the limit would never be read.
func (rd *reader) collect(records iter.Seq[*record], to int64, limit int, wanted func(*record) bool) (out core.Records) {
	var bytes int64
	for r := range records {
		if r.seq > to {
			break
		}
		if !wanted(r) {
			continue
		}
		bytes += int64(len(r.env.Body))
		if n := len(out.Records); n > 0 && (limit > 0 && n >= limit || rd.request.Bytes > 0 && bytes > rd.request.Bytes) {
			out.More = true
			break
		}
		out.Records = append(out.Records, r.record(rd.now))
	}
	return out
}

// again answers ReadRequest.Recheck. It ignores versions: a record that the caller remembers can have been changed.
func (rd *reader) again(p *core.ReadResult) {
	for _, ref := range rd.request.Recheck {
		r := rd.s.find(ref)
		if r == nil {
			continue
		}
		switch w, ok := r.obstructs(rd.self, slices.Contains(rd.request.BlockingRoutes, ref.Route)); {
		case r.ready(), r.live() && r.holder != 0:
			p.Rechecked = append(p.Rechecked, r.record(rd.now))
		case ok:
			p.RecheckedBlocking = append(p.RecheckedBlocking, w)
		case r.retry():
			w.Why = core.BlockedByRetry // without a key it holds none, and waits all the same
			p.RecheckedBlocking = append(p.RecheckedBlocking, w)
		}
	}
}

func set[T comparable](list []T) map[T]bool {
	if len(list) == 0 {
		return nil
	}
	m := make(map[T]bool, len(list))
	for _, v := range list {
		m[v] = true
	}
	return m
}
