package mongo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Stage writes msgs in the transaction of sess, which must run. It never begins, commits or rolls back. Delays count
// from now by the server's clock. It takes three round trips for any number of messages with ids of its own, and at
// most nine otherwise.
//
// In a function that the driver's WithTransaction calls, sess is mongo.SessionFromContext(ctx). After an error roll
// back. If it matches waybill.ErrRetryTx, WithTransaction runs the function again.
func (s *Store) Stage(ctx context.Context, sess *driver.Session, msgs ...waybill.Message) (_ []waybill.Staged, err error) {
	if err := running("stage", sess); err != nil {
		return nil, err
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	ctx, span := s.stamper.StartSpan(ctx, len(msgs))
	defer func() { core.EndSpan(span, err) }()
	rows, err := s.stamper.Stamp(ctx, msgs)
	if err != nil {
		return nil, err
	}
	return s.StageRows(ctx, sess, rows...)
}

// running refuses a session without a transaction.
func running(op string, sess *driver.Session) error {
	switch {
	case sess == nil:
		return waybill.Invalid("waybill/mongo: "+op, "session: is nil; pass the session of a running transaction")
	case !sess.TransactionRunning():
		return waybill.Invalid("waybill/mongo: "+op, "session: no transaction is running; call it within WithTransaction, "+
			"or after StartTransaction and before the commit")
	}
	return nil
}

// StageRows is Stage for rows that are stamped already, with one answer a row.
func (s *Store) StageRows(ctx context.Context, sess *driver.Session, rows ...core.StagedRow) ([]waybill.Staged, error) {
	if err := running("stage", sess); err != nil {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	staged, err := s.stageRows(driver.NewSessionContext(ctx, sess), rows)
	if err != nil {
		return nil, classify("stage", raced(err))
	}
	return staged, nil
}

func (s *Store) stageRows(ctx context.Context, rows []core.StagedRow) ([]waybill.Staged, error) {
	first, now, err := s.draw(ctx, len(rows))
	if err != nil {
		return nil, err
	}
	l := s.newLedger(now)
	if err := l.loadStaged(ctx, rows); err != nil {
		return nil, err
	}
	staged := make([]waybill.Staged, len(rows))
	for i := range rows {
		if staged[i], err = l.stage(&rows[i], first+int64(i)); err != nil {
			return nil, err
		}
	}
	return staged, l.flush(ctx)
}

// loadStaged reads the records that can be in the way of rows: those with their ids, and live ones with their dedupe
// keys.
func (l *ledger) loadStaged(ctx context.Context, rows []core.StagedRow) error {
	ids, keys := bson.A{}, bson.A{}
	var replaced []string
	for i := range rows {
		r := &rows[i]
		if !r.GeneratedID {
			ids = append(ids, recordID{r.Route, r.Envelope.ID})
		}
		if r.DedupeKey != "" {
			keys = append(keys, dedupeID{r.Route, r.Envelope.Topic, r.DedupeKey})
		}
		if r.Replace {
			replaced = append(replaced, r.Route)
		}
	}
	return l.load(ctx, ids, keys, replaced)
}

// stage adds a row, unless it is a duplicate.
func (l *ledger) stage(r *core.StagedRow, seq int64) (waybill.Staged, error) {
	id := recordID{r.Route, r.Envelope.ID}
	out := waybill.Staged{ID: id.ID, Route: id.Route}
	if twin := l.byID[id]; twin != nil {
		if l.foreign(twin, r) {
			return out, r.IDTakenError("waybill/mongo: stage")
		}
		out.Duplicate = true
		return out, nil
	}
	var dedupe *dedupeID
	if r.DedupeKey != "" {
		dedupe = &dedupeID{r.Route, r.Envelope.Topic, r.DedupeKey}
		holder := l.byKey[*dedupe]
		if holder != nil && l.foreign(holder, r) {
			return out, r.DedupeKeyTakenError("waybill/mongo: stage")
		}
		if holder != nil && !r.Replace {
			out.ID, out.Duplicate = holder.ID.ID, true
			return out, nil
		}
		if holder != nil {
			out.Replaced = l.cancelRecord(holder, waybill.ReasonReplaced)
			if out.Replaced == waybill.CancelInFlight {
				l.forget(holder)
			}
		}
	}
	l.add(l.s.newRecord(r, id, dedupe, seq, l.now))
	return out, nil
}

// foreign reports whether r is of another source than doc. A document that cannot be read has no source.
func (l *ledger) foreign(doc *record, r *core.StagedRow) bool {
	e, _ := l.s.envelope(doc)
	return e.Source != r.Envelope.Source
}

// newRecord returns the document of a row.
func (s *Store) newRecord(r *core.StagedRow, id recordID, dedupe *dedupeID, seq int64, now time.Time) *record {
	e := &r.Envelope
	since := later(now, r.Delay)
	if !r.DeliverAt.IsZero() {
		since = now
		if r.DeliverAt.After(now) {
			since = ceil(r.DeliverAt)
		}
	}
	doc := &record{
		ID: id, Seq: seq, Route: id.Route, Key: e.Key, Slot: int32(core.SlotOf(id.Route, e.Key, id.ID)), Version: 1, Phase: phaseReady,
		Cancellable: r.Cancellable, HLC: int64(e.HLC), Topic: e.Topic, Dedupe: dedupe, Since: since, Expires: e.Expires,
		DedupeKey: r.DedupeKey, Body: e.Body,
	}
	if doc.Body == nil {
		doc.Body = []byte{}
	}
	if since.After(now) {
		doc.Phase, doc.Due = phaseTimer, since
	}
	kind, raw, err := bson.MarshalValue(encodeAttrs(e))
	if err != nil {
		doc.unreadable = fmt.Errorf("waybill/mongo: stage: %w", err)
	}
	doc.Attrs = bson.RawValue{Type: kind, Value: raw}
	return doc
}
