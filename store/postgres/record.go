package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// recordSQL are the columns of record r that recordReader reads; the body follows.
const recordSQL = `r.seq, r.id, r.version, r.slot, r.attempts, r.deliveries, r.crashes, r.cancellable, ` + holderSQL + ` AS holder,
    r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
    r.ready_since, r.attrs`

// recordReader reads rows of a number, recordSQL, a body, and maybe more.
type recordReader struct {
	n       int // the number of the row read last
	record  core.Record
	stamp   int64
	since   time.Time
	expires *time.Time
	attrs   []byte
	dest    []any

	topic, key, kind, source, contentType repeated
}

// repeated reads a text that is mostly that of the row before. It allocates memory only if the text is another one.
type repeated struct {
	to   *string
	last string
}

// ScanBytes implements pgtype.BytesScanner.
func (r *repeated) ScanBytes(text []byte) error {
	if string(text) != r.last {
		r.last = string(text)
	}
	*r.to = r.last
	return nil
}

// reader returns a recordReader. The columns behind the body go to more.
func (o *Outbox) reader(more ...any) *recordReader {
	d := &recordReader{}
	r, e := &d.record, &d.record.Envelope
	d.topic.to, d.key.to, d.kind.to, d.source.to, d.contentType.to = &e.Topic, &e.Key, &e.Type, &e.Source, &e.ContentType
	d.dest = append([]any{
		&d.n, &r.Seq, &r.ID, &r.Version, &r.Slot, &r.Attempts, &r.Deliveries, &r.Crashes, &r.Cancellable, (*int64)(&r.HeldBy),
		&d.topic, &d.key, &d.kind, &d.source, &d.contentType, &e.CorrelationID, &e.TraceParent, &e.Time, &d.stamp, &d.expires,
		&d.since, &d.attrs, &e.Body,
	}, more...)
	return d
}

// read reads a row, but for its route. The record is that of d until the next row. The body is nil if the statement
// left it out.
func (d *recordReader) read(rows pgx.Rows, now time.Time) (*core.Record, error) {
	d.record, d.expires, d.attrs = core.Record{}, nil, nil
	if err := rows.Scan(d.dest...); err != nil {
		return nil, err
	}
	r, e := &d.record, &d.record.Envelope
	e.ID = r.ID
	if e.Type == "" {
		e.Type = e.Topic
	}
	e.Time, e.HLC = e.Time.UTC(), hlc.Timestamp(d.stamp)
	if d.expires != nil {
		e.Expires = d.expires.UTC()
		r.Expires, r.ExpiresIn = true, d.expires.Sub(now)
	}
	r.DueFor = max(now.Sub(d.since), 0)
	r.Failed = r.Attempts > 0
	r.Err = decodeAttrs(e, d.attrs)
	if r.Err == nil && d.stamp < 0 {
		r.Err = undecodable("column hlc", hlc.ErrInvalid)
	}
	return r, nil
}

// waitingSQL are the columns of record r that readWaiting reads, after one of its own.
const waitingSQL = `r.route, r.seq, r.id, r.version, r.slot, r.key, r.why, r.holder`

// whySQL is the reason why record r blocks its key, if it is live: another session holds it, or it waits for a retry;
// null if nothing does.
const whySQL = `CASE WHEN ` + holderSQL + ` NOT IN (0, $1::bigint) THEN {held} WHEN r.retry AND r.key <> '' THEN {retrying} END`

func readWaiting(rows pgx.Rows) (n int, w core.BlockingRecord, err error) {
	err = rows.Scan(&n, &w.Route, &w.Seq, &w.ID, &w.Version, &w.Slot, &w.Key, (*uint8)(&w.Why), (*int64)(&w.HeldBy))
	return n, w, err
}
