package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Tx is a transaction of the application. A real one also holds the application's own rows.
type Tx struct {
	s      *Store
	staged []*row
	ended  bool
}

// Begin starts a transaction. It waits for the one that stages now. LOCK: a database with many writers need not wait;
// but then numbers become visible late, and ReadResult.SnapshotXmax, LastSeqXmax and RunningTxs must say which.
func (s *Store) Begin(ctx context.Context) (*Tx, error) {
	select {
	case s.writer <- struct{}{}:
		return &Tx{s: s}, nil
	case <-ctx.Done():
		return nil, &waybill.Error{Op: "skeleton: begin", Class: waybill.ClassOutage, Err: ctx.Err()}
	}
}

// Commit makes the staged rows visible. Numbers are drawn here, so none is ever open.
func (tx *Tx) Commit() error {
	if tx.ended {
		return fmt.Errorf("skeleton: commit: the transaction has ended: %w", waybill.ErrClosed)
	}
	tx.s.mu.Lock()
	for _, r := range tx.staged {
		tx.s.seq++
		r.Seq = tx.s.seq
		tx.s.rows = append(tx.s.rows, r)
	}
	tx.s.mu.Unlock()
	tx.end()
	return nil
}

// Rollback forgets the staged rows. After Commit it does nothing.
func (tx *Tx) Rollback() {
	if !tx.ended {
		tx.end()
	}
}

func (tx *Tx) end() {
	tx.ended = true
	<-tx.s.writer
}

// Stage writes msgs in tx. The stamper checks them, and makes a row for each route of each message.
func (s *Store) Stage(ctx context.Context, tx *Tx, msgs ...waybill.Message) (_ []waybill.Staged, err error) {
	if tx == nil || tx.s != s || tx.ended {
		return nil, fmt.Errorf("%w: skeleton: stage: the transaction is nil, has ended, or is of another store", waybill.ErrInvalid)
	}
	ctx, span := s.stamper.StartSpan(ctx, len(msgs))
	defer func() { core.EndSpan(span, err) }()
	rows, err := s.stamper.Stamp(ctx, msgs)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, &waybill.Error{Op: "skeleton: stage", Class: waybill.ClassOutage, Err: err}
	}
	return tx.stage(rows)
}

func (tx *Tx) stage(rows []core.StagedRow) ([]waybill.Staged, error) {
	out := make([]waybill.Staged, len(rows))
	for i := range rows {
		in := &rows[i]
		if in.Replace {
			return nil, fmt.Errorf("skeleton: stage: replace: %w", waybill.ErrUnsupported)
		}
		out[i] = waybill.Staged{ID: in.Envelope.ID, Route: in.Route}
		if twin := tx.twin(in); twin != nil {
			foreign := twin.env.Source != in.Envelope.Source
			switch {
			case foreign && twin.ID == in.Envelope.ID:
				return nil, in.IDTakenError("skeleton: stage")
			case foreign:
				return nil, in.DedupeKeyTakenError("skeleton: stage")
			}
			out[i].ID, out[i].Duplicate = twin.ID, true
			continue
		}
		tx.staged = append(tx.staged, newRow(in, time.Now()))
	}
	return out, nil
}

// twin returns the row that makes this one a duplicate: one with the same (route, id), or a live one with the same
// (route, topic, dedupe key); or nil. INDEX: unique on (route, id) for ids that the application chose, and on (route,
// topic, dedupe key) where that is set and the row is live.
func (tx *Tx) twin(in *core.StagedRow) *row {
	tx.s.mu.Lock()
	defer tx.s.mu.Unlock()
	for _, r := range slices.Concat(tx.s.rows, tx.staged) {
		if r.Route != in.Route {
			continue
		}
		if r.ID == in.Envelope.ID || in.DedupeKey != "" && r.Live() && r.dedupe == in.DedupeKey && r.env.Topic == in.Envelope.Topic {
			return r
		}
	}
	return nil
}

func newRow(in *core.StagedRow, now time.Time) *row {
	r := &row{env: in.Envelope.Clone(), dedupe: in.DedupeKey, since: now, Row: rules.Row{
		Ref: core.Ref{Route: in.Route, ID: in.Envelope.ID, Version: 1}, Slot: core.SlotOf(in.Route, in.Envelope.Key, in.Envelope.ID),
		State: core.StatePending, Keyed: in.Envelope.Key != "", Cancellable: in.Cancellable || in.DedupeKey != "",
	}}
	if r.due = now.Add(in.Delay); !in.DeliverAt.IsZero() {
		r.due = in.DeliverAt
	}
	if r.due.After(now) {
		r.Waits, r.since = true, r.due
	}
	return r
}

// StageRows writes rows that a stamper made. The conformance suite stages so.
func (tx *Tx) StageRows(rows ...core.StagedRow) error {
	_, err := tx.stage(rows)
	return err
}
