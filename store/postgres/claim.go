package postgres

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

const (
	// maxClaim bounds the records of one claim.
	maxClaim = 10_000
	// maxRounds bounds the round trips of one Claim that finds nothing at first.
	maxRounds = 4
)

// Claim leases records; see [core.OutboxStore]. Each round trip looks at a bounded number of rows, from a position that
// goes round: the rows behind it are visited in laps. If a first look finds nothing, no suspects either, Claim looks on, up
// to four times.
func (o *Outbox) Claim(ctx context.Context, req core.ClaimRequest) (core.Claim, error) {
	if err := checkRequest(&req); err != nil {
		return core.Claim{}, err
	}
	if err := o.ready(ctx); err != nil {
		return core.Claim{}, err
	}
	for round := 1; ; round++ {
		if err := o.catchUp(ctx, &req); err != nil {
			return core.Claim{}, err
		}
		view := o.claims.plan(&req)
		a, err := o.claimOnce(ctx, &req, view)
		if err != nil {
			return core.Claim{}, err
		}
		claim := o.claims.advance(&req, view, a)
		if len(claim.Records) > 0 || claim.Suspects || !claim.More || round == maxRounds {
			if !req.Alone {
				o.waiter.claimed(view.names, view.began, a, claim.More)
			}
			return claim, nil
		}
	}
}

func checkRequest(req *core.ClaimRequest) error {
	var p []string
	if len(req.Routes) == 0 {
		p = append(p, "Routes: is empty; name at least one")
	}
	if req.MaxRecords < 1 || req.MaxRecords > maxClaim {
		p = append(p, "MaxRecords: "+strconv.Itoa(req.MaxRecords)+" is not between 1 and "+strconv.Itoa(maxClaim))
	}
	if req.Lease < time.Millisecond {
		p = append(p, "Lease: "+req.Lease.String()+" is less than a millisecond")
	}
	for _, r := range req.Routes {
		switch r.Order {
		case core.OrderPerKey, core.OrderBestEffort:
		case core.OrderHLC:
			p = append(p, "Routes: order hlc is not offered by this store; see StoreTraits.HLCOrder")
		default:
			p = append(p, "Routes: order "+r.Order.String())
		}
	}
	return core.Invalid("waybill/postgres: claim", p...)
}

// answer is what one round trip saw.
type answer struct {
	records   []core.Record
	shards    uint64  // key shards that were locked
	rows      []int64 // by range: rows seen, greatest and least sequence, least claimable one that was not claimed
	last      []int64
	least     []int64
	remaining []int64
	open      []int64 // by range: greatest sequence of a row that is not merely behind others of its key
	busyRange []int64 // of rows of keys in progress: the range, from 1; the sequence, ascending; the key
	busySeq   []int64
	busyKey   []string
	suspects  bool
	held      bool
	clean     bool   // of claimFront: it was all there is
	behind    int64  // of claimFront: least sequence of a row of a key behind the front
	keyed     bool   // there were rows whose key must be kept in order
	leaseIn   *int64 // microseconds
	timerIn   *int64
	sequence  int64 // last sequence given out
	xmin      int64
	xmax      int64
	took      int64     // microseconds that the claiming statement took
	now       time.Time // when it began, by the database's clock
}

func (o *Outbox) claimOnce(ctx context.Context, req *core.ClaimRequest, v *view) (*answer, error) {
	if v.simple {
		a, err := o.claimFront(ctx, req, v)
		if err != nil || a.clean {
			return a, err
		}
	}
	session, token := o.claims.token(req.Session)
	var a *answer
	err := o.transactWith(ctx, "claim", setClaimSQL, func(b *pgx.Batch) {
		a = &answer{}
		o.claims.promoteDue(b, v)
		o.claims.lockShards(b, v, a)
		b.Queue(v.statement, v.routes, v.lo, v.hi, v.floor, v.keyed, v.block, v.window, v.skip, v.records, v.bytes, req.Alone,
			req.Owner, token, micros(req.Lease), session).Query(func(rows pgx.Rows) error { return a.read(rows, o.opts.Source) })
	})
	if err != nil {
		return nil, err
	}
	a.lease(token, req.Lease)
	return a, nil
}

// promoteDue puts in line what came due, and notes in v what did.
func (c *claimer) promoteDue(b *pgx.Batch, v *view) {
	clear(v.promoted)
	b.Queue(c.promote, v.names, promoteStep).Query(func(rows pgx.Rows) error { return readPromoted(rows, v.promoted) })
}

// lockShards locks the shards of v, and notes which it got.
func (c *claimer) lockShards(b *pgx.Batch, v *view, a *answer) {
	if len(v.shards) == 0 {
		return
	}
	b.Queue(c.lock, v.shards, c.class).QueryRow(func(row pgx.Row) error {
		var bits string
		if err := row.Scan(&bits); err != nil {
			return err
		}
		n, err := strconv.ParseInt(bits, 10, 64)
		a.shards = uint64(n)
		return err
	})
}

// lease notes the lease of the records, which it sorts.
func (a *answer) lease(token int64, lease time.Duration) {
	remaining := max(lease-microsDuration(a.took), 0)
	for i := range a.records {
		a.records[i].Lease = core.Lease{Token: token, Remaining: remaining}
	}
	byseq := func(x, y core.Record) int { return cmp.Compare(x.Seq, y.Seq) }
	if !slices.IsSortedFunc(a.records, byseq) {
		slices.SortFunc(a.records, byseq)
	}
}

// The first row says what the claim saw, in metaColumns; each of the others is a record, in the columns after them.
const metaColumns = 18

func (a *answer) read(rows pgx.Rows, source string) error {
	dest := make([]any, metaColumns, metaColumns+recordColumns)
	copy(dest, []any{
		&a.rows, &a.last, &a.least, &a.remaining, &a.open, &a.busyRange, &a.busySeq, &a.busyKey, &a.suspects, &a.held, &a.keyed,
		&a.leaseIn, &a.timerIn, &a.sequence, &a.xmin, &a.xmax, &a.took, &a.now,
	})
	if rows.Next() {
		if err := rows.Scan(append(dest, make([]any, recordColumns)...)...); err != nil {
			return err
		}
	}
	clear(dest)
	return a.readRecords(rows, dest, source)
}

// readRecords reads records from the columns after skip.
func (a *answer) readRecords(rows pgx.Rows, skip []any, source string) error {
	r := newRecordReader(skip, source)
	for rows.Next() {
		a.records = append(a.records, core.Record{})
		if err := r.read(rows, a.now, &a.records[len(a.records)-1]); err != nil {
			return err
		}
	}
	return rows.Err()
}

const recordColumns = 18

// recordReader reads rows of recordSQL.
type recordReader struct {
	dest    []any
	columns []any // of dest, those of the record
	source  string
	stamp   int64
	since   time.Time
	expires *time.Time
	attrs   []byte
}

func newRecordReader(skip []any, source string) *recordReader {
	dest := append(skip, make([]any, recordColumns)...)
	return &recordReader{dest: dest, columns: dest[len(skip):], source: source}
}

// read reads a row. What it holds may be unreadable; then the record says so.
func (d *recordReader) read(rows pgx.Rows, now time.Time, r *core.Record) error {
	e := &r.Envelope
	c := d.columns
	c[0], c[1], c[2], c[3], c[4], c[5], c[6] = &r.Seq, &r.Route, &e.ID, &e.Topic, &e.Key, &e.Type, &e.Source
	c[7], c[8], c[9], c[10], c[11], c[12] = &e.ContentType, &e.CorrelationID, &e.TraceParent, &e.Time, &d.stamp, &d.expires
	c[13], c[14], c[15], c[16], c[17] = &d.attrs, &e.Body, &r.Attempts, &r.Crashes, &d.since
	d.expires, d.attrs = nil, nil
	if err := rows.Scan(d.dest...); err != nil {
		return err
	}
	if e.Type == "" {
		e.Type = e.Topic
	}
	if e.Source == "" {
		e.Source = d.source
	}
	e.Time = e.Time.UTC()
	if d.expires != nil {
		e.Expires = d.expires.UTC()
	}
	e.HLC = hlc.Timestamp(d.stamp)
	r.Age = max(now.Sub(d.since), 0)
	r.Failed = r.Attempts > 0
	r.Err = decodeAttrs(e, d.attrs)
	if r.Err == nil && d.stamp < 0 {
		r.Err = &core.Error{Op: "waybill/postgres: column hlc", Class: core.ClassPermanent, Reason: core.ReasonUndecodable, Err: hlc.ErrInvalid}
	}
	return nil
}

func microsDuration(us int64) time.Duration {
	if us > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}
