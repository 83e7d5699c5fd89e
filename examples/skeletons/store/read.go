package store

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Read answers all parts of look. SNAPSHOT: all of them from one, or the order of keys breaks.
func (s *Store) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	end, err := s.begin(ctx, "read")
	if err != nil {
		return core.ReadResult{}, err
	}
	defer end()
	m := s.member(self)
	if m == nil {
		return core.ReadResult{}, nil
	}
	// Numbers are drawn by Commit: the snapshot shows all of them, and so does one transaction id.
	p := core.ReadResult{IsMember: true, Suspected: m.Suspected, StoreEpoch: epoch, LastSeq: s.seq, SnapshotXmax: 1}
	if s.seq != request.KnownLastSeq {
		p.LastSeqXmax = 1
	}
	rd := reader{s: s, self: self, request: &request, now: time.Now()}
	for _, part := range request.Slots {
		p.Owned = append(p.Owned, s.owned(self, part))
	}
	p.Blocking, p.MoreBlocking = rd.fresh()
	for i := range request.Ranges {
		rg := &request.Ranges[i]
		// INDEX: ready rows by (route, seq)
		p.Ranges = append(p.Ranges, rd.collect(rg.AfterSeq, rg.UpToSeq, rg.Limit, func(r *row) bool {
			return r.Route == rg.Route && rg.Slots.Has(r.Slot) && (r.env.Key != "" || !rg.KeyedOnly)
		}))
	}
	for i := range request.Keys {
		p.Keys = append(p.Keys, rd.key(&request.Keys[i]))
	}
	rd.again(&p)
	return p, nil
}

func (s *Store) owned(self core.Session, part core.RouteSlots) (own core.Slots) {
	for i := range s.membership.Partitions {
		if u := &s.membership.Partitions[i]; u.Owner == self && u.Partition.Route == part.Route {
			own |= u.Partition.Slots() & part.Slots
		}
	}
	return own
}

// reader answers the parts of one ReadRequest.
type reader struct {
	s       *Store
	self    core.Session
	request *core.ReadRequest
	now     time.Time
}

// collect returns the wanted ones of the ready rows in (from, to], within the limits. At least one is returned, of any
// size. A limit of 0 is none.
func (rd *reader) collect(from, to int64, limit int, wanted func(r *row) bool) (out core.Records) {
	var bytes int64
	for _, r := range rd.s.rows {
		if r.Seq <= from || r.Seq > to || !r.Ready() || !wanted(r) {
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

// key answers a range of a key, with all that blocks the key. INDEX: ready rows by (route, key, seq); waiting, held and
// abandoned rows by (route, key).
func (rd *reader) key(kr *core.KeyRange) (out core.KeyRecords) {
	ofKey := func(r *row) bool { return r.Route == kr.Route && r.env.Key == kr.Key }
	got := rd.collect(kr.AfterSeq, kr.UpToSeq, kr.Limit, ofKey)
	out.Records, out.More = got.Records, got.More
	for _, r := range rd.s.rows {
		if w, ok := rd.blockReason(r); ok && ofKey(r) {
			out.Blocking = append(out.Blocking, w)
		}
	}
	return out
}

// fresh returns the rows that wait in ReadRequest.NewlyOwned, by sequence.
func (rd *reader) fresh() (waiting []core.BlockingRecord, more bool) {
	for _, r := range rd.s.rows { // INDEX: waiting, held and abandoned rows by (route, seq)
		asked := slices.ContainsFunc(rd.request.NewlyOwned, func(p core.RouteSlots) bool { return p.Route == r.Route && p.Slots.Has(r.Slot) })
		w, ok := rd.blockReason(r)
		if !asked || !ok || r.Seq <= rd.request.NewlyOwnedAfter {
			continue
		}
		if rd.request.BlockingLimit > 0 && len(waiting) == rd.request.BlockingLimit {
			return waiting, true
		}
		waiting = append(waiting, w)
	}
	return waiting, false
}

// again reads single rows again, of any version.
func (rd *reader) again(p *core.ReadResult) {
	for _, ref := range rd.request.Recheck {
		r := rd.s.find(ref)
		if r == nil {
			continue
		}
		w, blocks := rd.blockReason(r)
		switch {
		case r.Ready(), r.Live() && r.Holder != 0:
			p.Rechecked = append(p.Rechecked, r.record(rd.now))
		case blocks:
			p.RecheckedBlocking = append(p.RecheckedBlocking, w)
		case r.Retry(): // without a key it holds none, and waits all the same
			w.Why = core.BlockedByRetry
			p.RecheckedBlocking = append(p.RecheckedBlocking, w)
		}
	}
}

// block reason returns why r, and with it its key, is not handed out to self.
func (rd *reader) blockReason(r *row) (core.BlockingRecord, bool) {
	why := r.Obstructs(rd.self, slices.Contains(rd.request.BlockingRoutes, r.Route))
	return core.BlockingRecord{Ref: r.Ref, Slot: r.Slot, Key: r.env.Key, HeldBy: r.Holder, Why: why}, why != 0
}
