package memory

import (
	"cmp"
	"context"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Stage writes msgs in tx, as waybill.Stager says. If another transaction has staged the same (route, id) or dedupe
// key, or cancels it, Stage waits until that transaction ends. A message with a dedupe key is cancellable: it can be
// cancelled and replaced although it is due.
func (s *Store) Stage(ctx context.Context, tx *Tx, msgs ...waybill.Message) (_ []waybill.Staged, err error) {
	if err := s.owns(tx); err != nil {
		return nil, fmt.Errorf("waybill/memory: stage: %w", err)
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
	staged := make([]waybill.Staged, 0, len(rows))
	err = s.whenFree(ctx, tx, "stage", func() (wait *Tx, err error) {
		for len(staged) < len(rows) {
			one, _, wait, err := tx.stage(&rows[len(staged)])
			if wait != nil || err != nil {
				return wait, err
			}
			staged = append(staged, one)
		}
		return nil, nil
	})
	if err != nil {
		tx.Fail(err)
		if waybill.ReasonOf(err) != waybill.ReasonIDConflict {
			err = outage("stage", err)
		}
		return nil, err
	}
	return staged, nil
}

// Stage writes rows, such as those of a stamper, and returns their sequence numbers. An empty Route is
// waybill.DefaultRoute. GeneratedID is ignored. A duplicate writes nothing: its number is 0, although one was drawn.
// Stage fails as a whole, with core.ErrLocked where [Store.Stage] would wait.
func (tx *Tx) Stage(rows ...core.StagedRow) ([]int64, error) {
	s := tx.s
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(tx.steps)
	seqs := make([]int64, len(rows))
	for i := range rows {
		_, seq, wait, err := tx.stage(&rows[i])
		if wait != nil {
			err = busy("stage", rows[i].Envelope.ID, rows[i].Route)
		}
		if err != nil {
			tx.undo(before)
			return nil, err
		}
		seqs[i] = seq
	}
	return seqs, nil
}

// stage writes a row, unless it is a duplicate, or returns the transaction that tx must wait for.
func (tx *Tx) stage(row *core.StagedRow) (out waybill.Staged, seq int64, wait *Tx, err error) {
	s := tx.s
	if err := tx.begin("stage"); err != nil {
		return out, 0, nil, err
	}
	name := row.Route
	name = cmp.Or(name, waybill.DefaultRoute)
	out = waybill.Staged{ID: row.Envelope.ID, Route: name}
	rt := s.route(name)
	s.seq++
	seq = s.seq
	twin := rt.byID[row.Envelope.ID]
	switch other := s.locks[rowKey{name, row.Envelope.ID}]; {
	case other != nil && other != tx:
		return out, 0, other, nil
	case twin == nil, tx.vacates(twin):
	case twin.staging != nil && twin.staging != tx:
		return out, 0, twin.staging, nil
	case twin.cancelled() && twin.lock != tx:
		return out, 0, twin.lock, nil
	case twin.foreign(row):
		return out, 0, nil, row.IDTakenError("waybill/memory: stage")
	default:
		out.Duplicate = true
		return out, 0, nil, nil
	}
	if row.DedupeKey != "" {
		if wait, err := tx.dedupe(name, row, &out); wait != nil || err != nil || out.Duplicate {
			return out, 0, wait, err
		}
	}
	if other := rt.bySeq[seq]; other != nil {
		return out, 0, nil, fmt.Errorf("waybill/memory: stage %q: sequence %d of route %q belongs to %q: "+
			"the sequence was set back; set it above all records",
			row.Envelope.ID, seq, name, other.env.ID)
	}
	r := s.newRecord(rt, row, seq)
	r.txID, r.staging, r.shadows = tx.id, tx, twin
	rt.byID[r.env.ID], rt.bySeq[seq] = r, r
	tx.own(r)
	tx.steps = append(tx.steps, step{kind: stepStage, r: r})
	return out, seq, nil, nil
}

func (s *Store) newRecord(rt *route, row *core.StagedRow, seq int64) *record {
	now := s.now()
	r := &record{
		route: rt, env: row.Envelope.Clone(), slot: core.SlotOf(rt.name, row.Envelope.Key, row.Envelope.ID),
		dedupe: row.DedupeKey, seq: seq, version: 1,
		state: core.StatePending, since: now, cancellable: row.Cancellable || row.DedupeKey != "",
	}
	due := now.Add(row.Delay)
	if !row.DeliverAt.IsZero() {
		due = row.DeliverAt.Round(0)
	}
	if r.due = due; due.After(now) {
		r.waiting, r.since = true, due
	}
	return r
}

// vacates reports whether tx has cancelled r, so that its id is free in tx if no part of it is to be kept.
func (tx *Tx) vacates(r *record) bool {
	return r.staging == nil && tx.made[r].cancels() && core.RetentionCancelled.DroppedAtOnce(tx.s.retention)
}

// foreign reports that row is of another source than r. Rows of no stamper can have none.
func (r *record) foreign(row *core.StagedRow) bool {
	return r.env.Source != row.Envelope.Source && r.env.Source != "" && row.Envelope.Source != ""
}

// dedupe decides about a row with a dedupe key: it is a duplicate, replaces another, or is new. Otherwise it returns
// the transaction for which tx must wait.
func (tx *Tx) dedupe(route string, row *core.StagedRow, out *waybill.Staged) (wait *Tx, err error) {
	key := liveKey{route, row.Envelope.Topic, row.DedupeKey}
	if wait := tx.reserve(key); wait != nil {
		return wait, nil
	}
	r := tx.holder(key)
	switch {
	case r == nil:
		return nil, nil
	case r.lock != nil && r.lock != tx && (row.Replace || r.cancelled()):
		return r.lock, nil
	case r.foreign(row):
		return nil, row.DedupeKeyTakenError("waybill/memory: stage")
	case !row.Replace:
		out.ID, out.Duplicate = r.env.ID, true
		return nil, nil
	}
	out.Replaced, wait = tx.cancelRecord(r, replaced)
	return wait, nil
}

// holder returns the live record with a dedupe key as tx sees it, or nil.
func (tx *Tx) holder(key liveKey) *record {
	if r := tx.heirs[key]; r != nil {
		return r
	}
	r := tx.s.holders[key]
	if r == nil || tx.made[r].cancels() || tx.made[r] == freed {
		return nil
	}
	return r
}

// own notes that tx has staged r with a dedupe key.
func (tx *Tx) own(r *record) {
	if r.dedupe == "" {
		return
	}
	if tx.heirs == nil {
		tx.heirs = map[liveKey]*record{}
	}
	tx.heirs[r.liveKey()] = r
}

// disown undoes own.
func (tx *Tx) disown(r *record) {
	if r.dedupe != "" && tx.heirs[r.liveKey()] == r {
		delete(tx.heirs, r.liveKey())
	}
}
