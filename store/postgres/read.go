package postgres

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

// A read is one batch of statements in one snapshot: one round trip. The bytes of a read are shared between its ranges.
// To add up the bodies in the statement costs each read of small ones. So a read first gives each record an equal
// share. Only after a body was larger than that, the next reads add the bodies up.

// defaultLimit is for limits that are not set.
const defaultLimit = 1000

// Read answers all parts of request from one snapshot and locks nothing. A read that met a body with more than its
// share of the bytes is repeated only if a range came back empty: the cut ranges have the records before that body.
func (o *Outbox) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	shared, began := o.large.Add(-1) < 0, time.Now()
	result, cut, err := o.readOnce(ctx, self, &request, shared)
	if cut {
		o.large.Store(largeReads)
		if empty(&result) {
			result, _, err = o.readOnce(ctx, self, &request, false)
		}
	}
	if err != nil || !result.IsMember {
		return core.ReadResult{}, err
	}
	o.waiter.Read(began, &request, &result)
	return result, nil
}

// largeReads is how many reads after one that met a body with more than its share of the bytes add the bytes up.
const largeReads = 100

// empty reports whether a range has more records and none was returned.
func empty(result *core.ReadResult) bool {
	return slices.ContainsFunc(result.Ranges, func(r core.Records) bool { return r.More && len(r.Records) == 0 }) ||
		slices.ContainsFunc(result.Keys, func(k core.KeyRecords) bool { return k.More && len(k.Records) == 0 })
}

// readOnce reads a page. If shared, the page is cut behind a body that has more than its share of the bytes; cut says
// so.
func (o *Outbox) readOnce(ctx context.Context, self core.Session, request *core.ReadRequest, shared bool) (p core.ReadResult, cut bool, err error) {
	var now time.Time
	from := o.floor.look()
	err = o.transact(ctx, "read", readSQL, func(b *batch) {
		p = core.ReadResult{
			Owned: []core.Slots{}, Ranges: make([]core.Records, len(request.Ranges)), Keys: make([]core.KeyRecords, len(request.Keys)),
		}
		cut = false
		queuePage(b, self, request, from.after, &p, &now)
		b.Queue(b.sql.read.upper, request.KnownLastSeq, request.KnownLastNotice).QueryRow(func(row pgx.Row) error { return row.Scan(&p.LastSeqXmax) })
		c := collector{shared: shared, now: &now, cut: &cut, first: 64}
		o.queueRanges(b, request, &p, c)
		c.first = 1
		o.queueKeys(b, self, request, &p, c)
		queueFresh(b, self, request, &p)
		o.queueAgain(b, self, request, &p, &now)
	})
	if err == nil && !o.floor.holds(from, p.StoreEpoch, p.LastNotice) {
		return o.readOnce(ctx, self, request, shared)
	}
	return p, cut, err
}

// collector reads the records of bounded ranges.
type collector struct {
	shared bool
	now    *time.Time
	cut    *bool // set if a body had more than its share
	first  int   // how many records there is room for at first; most keys have one
}

// read reads a row. It appends the record, unless it or one before it only says that there are more.
func (c collector) read(
	d *recordReader, rows pgx.Rows, to func(n int) (records *[]core.Record, more *bool, route string, limit int),
) error {
	r, err := d.read(rows, *c.now)
	if err != nil {
		return err
	}
	records, more, route, limit := to(d.n)
	switch {
	case *more:
	case r.Envelope.Body == nil:
		*more = true
		*c.cut = *c.cut || c.shared
	default:
		r.Route = route
		switch n := len(*records); { // records are large: they are moved once at most
		case n < cap(*records):
		case n == 0:
			*records = make([]core.Record, 0, min(c.first, limit))
		default:
			*records = slices.Grow(*records, max(min(7*n, limit-n), min(64, limit)))
		}
		*records = append(*records, *r)
		*more = len(*records) >= limit
	}
	return nil
}

// parts returns the columns of parts.
func parts(of []core.RouteSlots) (routes []string, slots []int64) {
	routes, slots = make([]string, len(of)), make([]int64, len(of))
	for i, p := range of {
		routes[i], slots[i] = p.Route, bits(p.Slots)
	}
	return routes, slots
}

// bits returns slots as the database has them.
func bits(s core.Slots) int64 { return int64(s) }

func queuePage(b *batch, self core.Session, request *core.ReadRequest, floor int64, result *core.ReadResult, now *time.Time) {
	routes, slots := parts(request.Slots)
	b.Queue(b.sql.read.page, int64(self), routes, slots, max(request.AfterNotice, floor)).QueryRow(func(row pgx.Row) error {
		var owned []int64
		var notice []byte
		err := row.Scan(&result.IsMember, &result.Suspected, &result.StoreEpoch, &result.LastSeq, now, &result.SnapshotXmax, &result.RunningTxs, &owned, &result.LastNotice, &notice)
		if err != nil {
			return err
		}
		for _, o := range owned {
			result.Owned = append(result.Owned, core.Slots(o))
		}
		if notice == nil {
			return nil
		}
		return json.Unmarshal(notice, &result.Notices)
	})
}

func (o *Outbox) queueRanges(b *batch, request *core.ReadRequest, result *core.ReadResult, c collector) {
	n := len(request.Ranges)
	if n == 0 {
		return
	}
	at, routes, slots, lo, hi := make([]int, n), make([]string, n), make([]int64, n), make([]int64, n), make([]int64, n)
	keyed, limit, skip := make([]bool, n), make([]int, n), []int64{}
	for i := range request.Ranges {
		r := &request.Ranges[i]
		at[i], routes[i], slots[i], lo[i], hi[i], keyed[i], limit[i] = i, r.Route, bits(r.Slots), r.AfterSeq, r.UpToSeq, r.KeyedOnly, orDefault(r.Limit)
		skip = append(skip, r.ExcludeSeqs...)
	}
	sql, args := &b.sql.read.ranges, []any{orAll(request.Bytes), at, routes, slots, lo, hi, keyed, limit}
	if len(skip) > 0 {
		sql, args = &b.sql.read.rangesBut, append(args, skip)
	}
	d := o.reader()
	to := func(n int) (*[]core.Record, *bool, string, int) {
		p := &result.Ranges[n]
		return &p.Records, &p.More, routes[n], limit[n]
	}
	b.each(func(rows pgx.Rows) error { return c.read(d, rows, to) }, sql.of(c.shared), args...)
}

func (o *Outbox) queueKeys(b *batch, self core.Session, request *core.ReadRequest, result *core.ReadResult, c collector) {
	n := len(request.Keys)
	if n == 0 {
		return
	}
	at, routes, keys := make([]int, n), make([]string, n), make([]string, n)
	lo, hi, limit := make([]int64, n), make([]int64, n), make([]int, n)
	for i := range request.Keys {
		k := &request.Keys[i]
		at[i], routes[i], keys[i], lo[i], hi[i], limit[i] = i, k.Route, k.Key, k.AfterSeq, k.UpToSeq, orDefault(k.Limit)
	}
	d := o.reader()
	to := func(n int) (*[]core.Record, *bool, string, int) {
		p := &result.Keys[n]
		return &p.Records, &p.More, routes[n], limit[n]
	}
	b.each(func(rows pgx.Rows) error { return c.read(d, rows, to) }, b.sql.read.keys.of(c.shared),
		orAll(request.Bytes), at, routes, keys, lo, hi, limit)
	b.each(func(rows pgx.Rows) error {
		n, w, err := readWaiting(rows)
		if err == nil {
			result.Keys[n].Blocking = append(result.Keys[n].Blocking, w)
		}
		return err
	}, b.sql.read.keysWaiting, int64(self), at, routes, keys, notNil(request.BlockingRoutes))
}

func queueFresh(b *batch, self core.Session, request *core.ReadRequest, result *core.ReadResult) {
	if len(request.NewlyOwned) == 0 {
		return
	}
	routes, slots := parts(request.NewlyOwned)
	limit := orDefault(request.BlockingLimit)
	b.each(func(rows pgx.Rows) error {
		_, w, err := readWaiting(rows)
		if len(result.Blocking) < limit {
			result.Blocking = append(result.Blocking, w)
		} else {
			result.MoreBlocking = true
		}
		return err
	}, b.sql.read.fresh, int64(self), routes, slots, request.NewlyOwnedAfter, limit+1, notNil(request.BlockingRoutes))
}

func (o *Outbox) queueAgain(b *batch, self core.Session, request *core.ReadRequest, result *core.ReadResult, now *time.Time) {
	if len(request.Recheck) == 0 {
		return
	}
	c := refs(request.Recheck)
	var why uint8
	d := o.reader(&why)
	b.each(func(rows pgx.Rows) error {
		r, err := d.read(rows, *now)
		if err != nil {
			return err
		}
		r.Route = request.Recheck[d.n].Route
		if why == 0 {
			result.Rechecked = append(result.Rechecked, *r)
		} else {
			result.RecheckedBlocking = append(result.RecheckedBlocking,
				core.BlockingRecord{Ref: r.Ref, Slot: r.Slot, Key: r.Envelope.Key, Why: core.BlockReason(why), HeldBy: r.HeldBy})
		}
		return nil
	}, b.sql.read.again, int64(self), c.n, c.routes, c.seqs, c.ids, notNil(request.BlockingRoutes))
}

// refColumns are refs as columns.
type refColumns struct {
	n        []int
	routes   []string
	seqs     []int64
	ids      []string
	versions []int64
}

func refs(of []core.Ref) refColumns {
	n := len(of)
	c := refColumns{make([]int, n), make([]string, n), make([]int64, n), make([]string, n), make([]int64, n)}
	for i := range of {
		c.n[i], c.routes[i], c.seqs[i], c.ids[i], c.versions[i] = i, of[i].Route, of[i].Seq, of[i].ID, of[i].Version
	}
	return c
}

func orDefault(limit int) int {
	if limit <= 0 || limit >= math.MaxInt32 {
		return defaultLimit
	}
	return limit
}

func orAll(bytes int64) int64 {
	if bytes <= 0 {
		return math.MaxInt64
	}
	return bytes
}

// notNil is for arrays in which something is looked for.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
