package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Settle persists outcomes in one transaction. If it fails as a whole nothing was changed, or, where the commit itself
// failed, it is not known; every slot then has the error.
func (s *Store) Settle(ctx context.Context, outcomes []core.Outcome) core.Results {
	if len(outcomes) == 0 {
		return core.Results{}
	}
	st, err := s.prepared(ctx, "settle")
	if err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	var res core.Results
	err = s.write(ctx, "settle", func(tx *sql.Tx) (bool, error) {
		w := settler{tx: tx, st: st, now: s.now(), keeps: s.keeps(), res: make(core.Results, len(outcomes)), outcomes: outcomes, released: map[string]bool{}, freed: map[string]map[string]bool{}}
		if err := w.run(ctx); err != nil {
			return false, err
		}
		if err := w.stir(ctx, &s.scans); err != nil {
			return false, err
		}
		res = w.res
		return w.changed, nil
	})
	if err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	return res
}

type settler struct {
	tx       *sql.Tx
	st       *statements
	now      int64
	keeps    bool // published records stay
	outcomes []core.Outcome
	res      core.Results
	changed  bool
	released map[string]bool            // routes with records that are claimable at once
	freed    map[string]map[string]bool // route → keys of which a record was settled
}

func (w *settler) run(ctx context.Context) error {
	published := map[int64][]int{} // token → outcomes; the records of one claim share a token
	var order []int64
	stamp := int64(0)
	for i := range w.outcomes {
		o := &w.outcomes[i]
		switch o.State() {
		case core.StatePublished:
			if published[o.Token()] == nil {
				order = append(order, o.Token())
			}
			published[o.Token()] = append(published[o.Token()], i)
		case core.StatePending, core.StateFailed, core.StateAbandoned:
			if err := w.keep(ctx, i); err != nil {
				return err
			}
		case core.StateNone, core.StateProcessing:
			w.res[i] = core.Invalid("waybill/sqlite: settle", "outcome: not built by Published, Retry, Abandon or Release")
		}
	}
	for _, token := range order {
		if err := w.publish(ctx, token, published[token]); err != nil {
			return err
		}
	}
	for i := range w.outcomes {
		if w.res[i] == nil {
			stamp = max(stamp, w.outcomes[i].Stamp())
		}
	}
	if !w.changed || stamp == 0 {
		return nil
	}
	_, err := on(ctx, w.tx, w.st.mark).ExecContext(ctx, stamp)
	return err
}

// publish deletes the records of one claim that were published, or marks them if they are kept.
func (w *settler) publish(ctx context.Context, token int64, at []int) error {
	slot := make(map[int64]int, len(at))
	seqs := make([]int64, len(at))
	for i, j := range at {
		seqs[i] = w.outcomes[j].Seq()
		slot[seqs[i]] = j
		w.res[j] = lost(&w.outcomes[j]) // until the database says otherwise
	}
	list, err := json.Marshal(seqs)
	if err != nil {
		return err
	}
	args := []any{string(list), token}
	if w.keeps {
		args = append(args, w.now)
	}
	rows, err := on(ctx, w.tx, w.st.publish).QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var seq int64
		var key sql.NullString
		if err := rows.Scan(&seq, &key); err != nil {
			return err
		}
		if j, ok := slot[seq]; ok {
			w.res[j] = nil
			w.changed = true
			w.free(w.outcomes[j].Route(), key.String)
		}
	}
	return rows.Err()
}

// keep writes the new state of a record that stays.
func (w *settler) keep(ctx context.Context, i int) error {
	o := &w.outcomes[i]
	attempt := 0
	if o.CountsAttempt() {
		attempt = 1
	}
	hold, wake := holdNone, any(int64(0))
	switch {
	case o.State() == core.StateAbandoned:
		wake = nil
	case o.RetryIn() > 0:
		hold, wake = holdBlocks, w.now+max(o.RetryIn().Microseconds(), 1)
	}
	var key sql.NullString
	err := on(ctx, w.tx, w.st.settle).QueryRowContext(ctx,
		o.Seq(), o.Token(), int64(o.State()), hold, wake, attempt, nullable(string(o.Reason())), nullable(o.Error()), w.now, o.Unknown()).Scan(&key)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		w.res[i] = lost(o)
		return nil
	case err != nil:
		return err
	}
	w.changed = true
	if hold == holdNone {
		w.free(o.Route(), key.String)
		w.released[o.Route()] = w.released[o.Route()] || wake != nil
	}
	return nil
}

func (w *settler) free(route, key string) {
	if key == "" {
		return
	}
	if w.freed[route] == nil {
		w.freed[route] = map[string]bool{}
	}
	w.freed[route][key] = true
}

// stir makes the next claim look at the rest of a route where something may have become claimable. It matters only
// where a claim cannot see all rows.
func (w *settler) stir(ctx context.Context, scans *scanState) error {
	for route, l := range scans.laps {
		if l.tail == 0 || l.done.IsZero() {
			continue
		}
		stirred := w.released[route]
		for key := range w.freed[route] {
			if stirred {
				break
			}
			if err := on(ctx, w.tx, w.st.follows).QueryRowContext(ctx, route, key).Scan(&stirred); err != nil {
				return err
			}
		}
		if stirred {
			l.done = time.Time{}
		}
	}
	return nil
}

func lost(o *core.Outcome) error {
	return fmt.Errorf("waybill/sqlite: settle %q: %w", o.ID(), core.ErrLeaseLost)
}

// ExtendLeases makes the leases of records last lease from now.
func (s *Store) ExtendLeases(ctx context.Context, records []core.Record, lease time.Duration) core.Results {
	if lease < time.Millisecond {
		return core.AllFailed(len(records), core.Invalid("waybill/sqlite: extend", fmt.Sprintf("lease: %s; at least a millisecond", lease)))
	}
	if len(records) == 0 {
		return core.Results{}
	}
	st, err := s.prepared(ctx, "extend")
	if err != nil {
		return core.AllFailed(len(records), err)
	}
	var res core.Results
	err = s.write(ctx, "extend", func(tx *sql.Tx) (changed bool, err error) {
		out := make(core.Results, len(records))
		until := s.now() + lease.Microseconds()
		for i := range records {
			r := &records[i]
			done, err := on(ctx, tx, st.extend).ExecContext(ctx, r.Seq, r.Lease.Token, until)
			if err != nil {
				return false, err
			}
			n, err := done.RowsAffected()
			if err != nil {
				return false, err
			}
			changed = changed || n > 0
			if n == 0 {
				out[i] = fmt.Errorf("waybill/sqlite: extend %q: %w", r.Envelope.ID, core.ErrLeaseLost)
			}
		}
		res = out
		return changed, nil
	})
	if err != nil {
		return core.AllFailed(len(records), err)
	}
	return res
}
