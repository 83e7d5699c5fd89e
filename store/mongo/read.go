package mongo

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/core"
)

// A page is one transaction with a snapshot. MongoDB has no transaction ids that a program can see. The list of open
// numbers in the document of the sequence stands for them: each entry is a staging transaction that has drawn numbers,
// and its ticket tells whether it has committed. See sequence.go.

const (
	// maxNotice bounds ReadResult.Notices, and maxNoticeRead the documents that are looked at for it.
	maxNotice, maxNoticeRead = 1000, 10_000
	// maxExcluded bounds the keys and sequences of a Range that the server leaves out. A store can ignore both.
	maxExcluded = 200
)

// Read answers all parts of look from one snapshot and locks nothing. A limit of 0 or less is no limit. Now and then it
// also removes what has ended from the list of open numbers.
func (s *Store) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	var rd reader
	err := s.transact(ctx, "read", func(ctx context.Context, w *work) error {
		rd = reader{work: w, self: self, request: &request}
		if err := rd.head(ctx); err != nil || !rd.result.IsMember {
			return err
		}
		return rd.records(ctx)
	})
	if err != nil {
		return core.ReadResult{}, err
	}
	if ask := s.doubts.due(rd.running); len(ask) > 0 || len(rd.done) >= tidyDone {
		s.resolve(ctx, rd.done, ask)
	}
	return rd.result, nil
}

// reader answers one ReadRequest in its transaction.
type reader struct {
	*work
	self          core.Session
	request       *core.ReadRequest
	result        core.ReadResult
	done, running []drawn
}

// head fills in the fields of a page other than records.
func (rd *reader) head(ctx context.Context) (err error) {
	p := &rd.result
	docs, err := rd.metas(ctx, "epoch", "sequence")
	if err != nil {
		return err
	}
	if p.IsMember, p.Suspected, err = rd.member(ctx, rd.self); err != nil || !p.IsMember {
		rd.result = core.ReadResult{}
		return err
	}
	seq := docs["sequence"]
	p.StoreEpoch, p.LastSeq = docs["epoch"].text(), seq.Value
	p.SnapshotXmax = p.LastSeq + 1
	if p.LastSeq != rd.request.KnownLastSeq {
		p.LastSeqXmax = p.SnapshotXmax
	}
	is, err := rd.s.committed(ctx, seq.Open)
	if err != nil {
		return err
	}
	for _, o := range seq.Open {
		if is[o.Ticket] {
			rd.done = append(rd.done, o)
			continue
		}
		rd.running = append(rd.running, o)
		p.RunningTxs = append(p.RunningTxs, o.From)
	}
	if len(rd.request.Slots) == 0 {
		return nil
	}
	own, err := rd.owned(ctx, rd.self, routesOf(rd.request.Slots))
	if err != nil {
		return err
	}
	for _, part := range rd.request.Slots {
		p.Owned = append(p.Owned, own[part.Route]&part.Slots)
	}
	p.Notices, err = rd.notices(ctx, rd.request.Slots)
	return err
}

func routesOf(parts []core.RouteSlots) (routes []string) {
	for _, p := range merge(parts) {
		routes = append(routes, p.Route)
	}
	return routes
}

// member reports whether the session is a member, and its flag.
func (w *work) member(ctx context.Context, session core.Session) (known, flag bool, err error) {
	if session == 0 {
		return false, false, nil
	}
	var d memberDoc
	err = w.s.members.FindOne(ctx, bson.M{"_id": int64(session)}).Decode(&d)
	if errors.Is(err, driver.ErrNoDocuments) {
		return false, false, nil
	}
	return err == nil, d.Suspected, err
}

// notices returns the notices of parts, by number.
func (rd *reader) notices(ctx context.Context, parts []core.RouteSlots) (out []core.Notice, err error) {
	cur, err := rd.s.notice.Find(ctx, bson.M{"route": bson.M{"$in": routesOf(parts)}}, options.Find().SetSort(bson.M{"_id": 1}).SetLimit(maxNoticeRead))
	if err != nil {
		return nil, err
	}
	var docs []noticeDoc
	if err := cur.All(ctx, &docs); err != nil {
		return nil, err
	}
	for i := range docs {
		d := &docs[i]
		slots := core.Slots(1) << d.Slot
		if core.NoticeKind(d.Kind) == core.NoticeReread {
			slots = core.Slots(d.Slots)
		}
		mine := slices.ContainsFunc(parts, func(p core.RouteSlots) bool { return p.Route == d.Route && p.Slots&slots != 0 })
		if mine && len(out) < maxNotice {
			out = append(out, d.notice())
		}
	}
	return out, nil
}

// records fills in the rest.
func (rd *reader) records(ctx context.Context) error {
	if err := rd.fresh(ctx); err != nil {
		return err
	}
	for i := range rd.request.Ranges {
		rs, err := rd.span(ctx, &rd.request.Ranges[i])
		if err != nil {
			return err
		}
		rd.result.Ranges = append(rd.result.Ranges, rs)
	}
	waiting, err := rd.waiting(ctx)
	if err != nil {
		return err
	}
	for i := range rd.request.Keys {
		kr := &rd.request.Keys[i]
		rs, err := rd.key(ctx, kr)
		if err != nil {
			return err
		}
		rd.result.Keys = append(rd.result.Keys, core.KeyRecords{
			Records: rs.Records, More: rs.More, Blocking: waiting[routeKey{kr.Route, kr.Key}],
		})
	}
	return rd.again(ctx)
}

// fresh answers ReadRequest.NewlyOwned.
func (rd *reader) fresh(ctx context.Context) error {
	limit, p := rd.request.BlockingLimit, &rd.result
	for _, part := range merge(rd.request.NewlyOwned) {
		block := slices.Contains(rd.request.BlockingRoutes, part.Route)
		seen := map[int64]bool{} // a retry that somebody holds is found twice
		for index, filter := range blockReasons(block) {
			filter["route"], filter["seq"] = part.Route, bson.M{"$gt": rd.request.NewlyOwnedAfter}
			opts := rd.by(index).SetProjection(headOnly).SetSort(bson.M{"seq": 1})
			n := 0
			err := rd.each(ctx, slotFilter(filter, part.Slots), opts, func(r *record) bool {
				if w, ok := r.obstructs(rd.self, block); ok && !seen[r.Seq] {
					seen[r.Seq] = true
					p.Blocking = append(p.Blocking, w)
					n++
				}
				return limit <= 0 || n <= limit
			})
			if err != nil {
				return err
			}
		}
	}
	slices.SortFunc(p.Blocking, func(a, b core.BlockingRecord) int { return cmp.Compare(a.Seq, b.Seq) })
	if limit > 0 && len(p.Blocking) > limit {
		p.Blocking, p.MoreBlocking = p.Blocking[:limit], true
	}
	return nil
}

// block reasons are the filters of records that can be in the way, by the index of each. One query with $or would use
// none of them well.
func blockReasons(block bool) map[string]bson.M {
	list := map[string]bson.M{"ready": {"phase": phaseRetry}, "hold": {"hold": bson.M{"$gt": int64(0)}}}
	if block {
		list["blocks"] = bson.M{"blocks": true}
	}
	return list
}

// bySequence are the options of reading whole records in order by an index, up to one more than limit.
func (w *work) bySequence(index string, limit int) *options.FindOptionsBuilder {
	opts := w.by(index).SetSort(bson.M{"seq": 1})
	if limit > 0 {
		opts = opts.SetLimit(int64(limit) + 1).SetBatchSize(int32(min(limit+1, 10_001)))
	}
	return opts
}

// span answers a range.
func (rd *reader) span(ctx context.Context, rg *core.Range) (core.Records, error) {
	filter := bson.M{"route": rg.Route, "phase": phaseReady}
	and := bson.A{bson.M{"seq": bson.M{"$gt": rg.AfterSeq, "$lte": rg.UpToSeq}}}
	if rg.KeyedOnly {
		and = append(and, bson.M{"key": bson.M{"$gt": ""}})
	}
	if n := len(rg.ExcludeKeys); n > 0 && n <= maxExcluded {
		and = append(and, bson.M{"key": bson.M{"$nin": rg.ExcludeKeys}})
	}
	if n := len(rg.ExcludeSeqs); n > 0 && n <= maxExcluded {
		and = append(and, bson.M{"seq": bson.M{"$nin": rg.ExcludeSeqs}})
	}
	filter["$and"] = and
	return rd.collect(ctx, "ready", slotFilter(filter, rg.Slots), rg.Limit)
}

// key returns the ready records of a key in a range.
func (rd *reader) key(ctx context.Context, kr *core.KeyRange) (core.Records, error) {
	if kr.Key == "" {
		return core.Records{}, nil
	}
	return rd.collect(ctx, "key", bson.M{
		"route": kr.Route, "key": kr.Key, "phase": phaseReady, "seq": bson.M{"$gt": kr.AfterSeq, "$lte": kr.UpToSeq},
	}, kr.Limit)
}

type routeKey struct{ route, key string }

// waiting returns the records that block the keys of the ReadRequest, by sequence.
func (rd *reader) waiting(ctx context.Context) (map[routeKey][]core.BlockingRecord, error) {
	keys := map[string][]string{} // by route
	for i := range rd.request.Keys {
		if kr := &rd.request.Keys[i]; kr.Key != "" {
			keys[kr.Route] = append(keys[kr.Route], kr.Key)
		}
	}
	out := map[routeKey][]core.BlockingRecord{}
	for route, list := range keys {
		block := slices.Contains(rd.request.BlockingRoutes, route)
		seen := map[int64]bool{} // a retry that somebody holds is found twice
		for index, filter := range blockReasons(block) {
			filter["route"], filter["key"] = route, bson.M{"$in": list}
			if index == "ready" {
				index = "waiting"
			}
			err := rd.each(ctx, filter, rd.by(index).SetProjection(headOnly), func(r *record) bool {
				if w, ok := r.obstructs(rd.self, block); ok && !seen[r.Seq] {
					seen[r.Seq] = true
					at := routeKey{route, r.Key}
					out[at] = append(out[at], w)
				}
				return true
			})
			if err != nil {
				return nil, err
			}
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b core.BlockingRecord) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return out, nil
}

// collect returns the ready records that filter selects, by sequence and within the limits.
func (rd *reader) collect(ctx context.Context, index string, filter bson.M, limit int) (out core.Records, err error) {
	var bytes int64
	err = rd.each(ctx, filter, rd.bySequence(index, limit), func(r *record) bool {
		bytes += int64(len(r.Body))
		if n := len(out.Records); n > 0 && (limit > 0 && n >= limit || rd.request.Bytes > 0 && bytes > rd.request.Bytes) {
			out.More = true
			return false
		}
		out.Records = append(out.Records, rd.record(r))
		return true
	})
	return out, err
}

// again answers ReadRequest.Recheck. It ignores versions: a record that the caller remembers can have been changed.
func (rd *reader) again(ctx context.Context) error {
	p := &rd.result
	found, err := rd.byID(ctx, rd.request.Recheck, nil)
	if err != nil {
		return err
	}
	for _, ref := range rd.request.Recheck {
		r := found[recordID{ref.Route, ref.ID}]
		if r == nil || r.Seq != ref.Seq {
			continue
		}
		switch w, ok := r.obstructs(rd.self, slices.Contains(rd.request.BlockingRoutes, ref.Route)); {
		case r.Phase == phaseReady, r.live() && r.Hold != 0:
			p.Rechecked = append(p.Rechecked, rd.record(r))
		case ok:
			p.RecheckedBlocking = append(p.RecheckedBlocking, w)
		case r.Phase == phaseRetry:
			w.Why = core.BlockedByRetry // without a key it holds none, and waits all the same
			p.RecheckedBlocking = append(p.RecheckedBlocking, w)
		}
	}
	return nil
}
