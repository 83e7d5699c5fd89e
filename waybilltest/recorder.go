package waybilltest

import (
	"context"
	"slices"
	"sync"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Recorder is a waybill.Stager that keeps the staged messages and needs no database. It is for producers that take
// another transaction than *memory.Tx: a Recorder[pgx.Tx] takes any pgx.Tx, nil too. It checks and completes messages
// as real stores do. Make it with [NewRecorder].
type Recorder[Tx any] struct {
	tb      TB
	stamper *core.Stamper

	mu       sync.Mutex
	recorded []Recorded[Tx]
}

// Recorded is one message on one route, as a store would have written it.
type Recorded[Tx any] struct {
	core.StagedRow
	// Tx is the transaction that was given to Stage.
	Tx Tx
}

// NewRecorder returns an empty recorder with the CloudEvents source "/test".
func NewRecorder[Tx any](tb TB) *Recorder[Tx] {
	tb.Helper()
	stamper, err := core.NewStamper(core.StamperOptions{Source: "/test"})
	if err != nil {
		tb.Fatalf("waybilltest: %v", err)
	}
	return &Recorder[Tx]{tb: tb, stamper: stamper}
}

// Stage records msgs, or returns a [*waybill.InvalidError]. A message with the route and the id of an earlier one, or
// with its route, topic and dedupe key, is a duplicate, unless it replaces the earlier one.
func (r *Recorder[Tx]) Stage(ctx context.Context, tx Tx, msgs ...waybill.Message) ([]waybill.Staged, error) {
	rows, err := r.stamper.Stamp(ctx, msgs)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var staged []waybill.Staged
	for i := range rows {
		rows[i].Envelope = rows[i].Envelope.Clone()
		one, err := r.record(tx, &rows[i])
		if err != nil {
			return nil, err
		}
		staged = append(staged, one)
	}
	return staged, nil
}

// record keeps row, unless it is a duplicate. mu is held.
func (r *Recorder[Tx]) record(tx Tx, row *core.StagedRow) (waybill.Staged, error) {
	out := waybill.Staged{ID: row.Envelope.ID, Route: row.Route}
	sameID := func(o Recorded[Tx]) bool { return o.Route == row.Route && o.Envelope.ID == row.Envelope.ID }
	sameKey := func(o Recorded[Tx]) bool {
		return row.DedupeKey != "" && o.DedupeKey == row.DedupeKey && o.Route == row.Route && o.Envelope.Topic == row.Envelope.Topic
	}
	if i := slices.IndexFunc(r.recorded, sameID); i >= 0 {
		if r.recorded[i].Envelope.Source != row.Envelope.Source {
			return out, row.IDTakenError("waybilltest: stage")
		}
		out.Duplicate = true
		return out, nil
	}
	if i := slices.IndexFunc(r.recorded, sameKey); i >= 0 {
		if r.recorded[i].Envelope.Source != row.Envelope.Source {
			return out, row.DedupeKeyTakenError("waybilltest: stage")
		}
		if !row.Replace {
			out.ID, out.Duplicate = r.recorded[i].Envelope.ID, true
			return out, nil
		}
		r.recorded = slices.Delete(r.recorded, i, i+1)
		out.Replaced = waybill.CancelDone
	}
	r.recorded = append(r.recorded, Recorded[Tx]{StagedRow: *row, Tx: tx})
	return out, nil
}

// Recorded returns the staged messages, in order; on the given topics only, if any. A replaced message is not among
// them.
func (r *Recorder[Tx]) Recorded(topics ...string) []Recorded[Tx] {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Recorded[Tx]
	for _, rec := range r.recorded {
		if len(topics) == 0 || slices.Contains(topics, rec.Envelope.Topic) {
			rec.Envelope = rec.Envelope.Clone()
			out = append(out, rec)
		}
	}
	return out
}

func (r *Recorder[Tx]) test() TB { return r.tb }

func (r *Recorder[Tx]) messages() []waybill.Envelope {
	var out []waybill.Envelope
	for _, rec := range r.Recorded() {
		out = append(out, rec.Envelope)
	}
	return out
}
