package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/waybill-go/waybill/core"
)

var _ core.Canceller[*sql.Tx] = (*Store)(nil)

// The statements that withdraw one message, named by id (?1 route, ?2 id) or by dedupe key (?1 route, ?2 topic, ?3 key).
// What is processing is a relay's, dead or alive. Each begins with a write, so that a transaction that began deferred takes
// the write lock before it reads.
const (
	byIDText      = ` WHERE route = ?1 AND id = ?2 AND ?3 = '' AND settled_at IS NULL`
	byKeyText     = ` WHERE route = ?1 AND topic = ?2 AND dedupe_key = ?3 AND dedupe_key IS NOT NULL AND settled_at IS NULL`
	unleasedText  = ` AND state <> 2 RETURNING id, topic, coalesce(dedupe_key, ''), maybe_sent OR crashes > 0`
	deleteText    = `DELETE FROM waybill_outbox`
	withdrawText  = `UPDATE waybill_outbox SET state = 5, hold = 0, wake_at = NULL, reason = ?5, settled_at = ?4`
	giveUpKeyText = `UPDATE waybill_outbox SET dedupe_key = NULL` + byKeyText + ` AND state = 2 AND NOT EXISTS (SELECT 1 FROM waybill_outbox WHERE route = ?1 AND id = ?4) RETURNING 1`
	holderText    = `SELECT id FROM waybill_outbox WHERE route = ?1 AND topic = ?2 AND dedupe_key = ?3 AND dedupe_key IS NOT NULL AND settled_at IS NULL
		AND NOT EXISTS (SELECT 1 FROM waybill_outbox WHERE route = ?1 AND id = ?4)`
	notStaged = ` AND NOT EXISTS (SELECT 1 FROM waybill_outbox x WHERE x.route = ?1 AND x.id = ?6)`
)

// withdrawer withdraws messages in a transaction of the application.
type withdrawer struct {
	store *Store
	tx    *sql.Tx
	now   int64
	keep  bool // withdrawn records stay
}

func (s *Store) withdrawer(tx *sql.Tx) *withdrawer {
	return &withdrawer{store: s, tx: tx, now: s.now(), keep: s.opts.Retention.Of(core.StateAbandoned, core.ReasonCancelled) != 0}
}

func (s *Store) withPrefix(text string) string {
	return strings.ReplaceAll(text, DefaultPrefix, s.opts.Prefix)
}

// withdrawn is a message that was taken away.
type withdrawn struct {
	id, topic, dedupe string
	maybe             bool
}

// take takes one message away that no relay holds: where says which, by a, b and c. It returns nil if there is none.
func (w *withdrawer) take(ctx context.Context, reason core.Reason, where, a, b, c string, more ...any) (*withdrawn, error) {
	text := deleteText
	args := append([]any{a, b, c, w.now, string(reason)}, more...)
	if w.keep {
		text = withdrawText
	}
	var m withdrawn
	err := w.tx.QueryRowContext(ctx, w.store.withPrefix(text+where+unleasedText), args...).Scan(&m.id, &m.topic, &m.dedupe, &m.maybe) //nolint:gosec // the text holds nothing foreign but Options.Prefix, which Validate has checked
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // there is none
	}
	return &m, err
}

func (m *withdrawn) status() core.CancelStatus {
	if m.maybe {
		return core.CancelMaybe
	}
	return core.CancelDone
}

// Cancel withdraws staged messages in tx, by id or by dedupe key; see [core.Canceller]. Keys that name the same message
// get the same answer. SQLite has one writer: a claim and a cancel cannot meet, and Cancel waits for the other as every
// write does. It takes the write lock.
func (s *Store) Cancel(ctx context.Context, tx *sql.Tx, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	if tx == nil {
		return nil, core.Invalid("waybill/sqlite: cancel", "tx: is nil; begin a transaction, cancel in it, commit it")
	}
	keys, err := core.CheckCancelKeys(keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	if err := s.readyIn(ctx, tx); err != nil {
		return nil, s.classify("cancel", ended("cancel", err))
	}
	w := s.withdrawer(tx)
	out := make([]core.CancelStatus, len(keys))
	seen := map[core.CancelKey]core.CancelStatus{}
	for i := range keys {
		if out[i], err = w.cancel(ctx, &keys[i], seen); err != nil {
			return nil, s.classify("cancel", ended("cancel", err))
		}
	}
	return out, nil
}

func (w *withdrawer) cancel(ctx context.Context, key *core.CancelKey, seen map[core.CancelKey]core.CancelStatus) (core.CancelStatus, error) {
	where, name := byIDText, key.ID
	if key.DedupeKey != "" {
		where, name = byKeyText, key.Topic
	}
	short := *key
	if key.ID != "" {
		short.Topic = ""
	}
	m, err := w.take(ctx, core.ReasonCancelled, where, key.Route, name, key.DedupeKey)
	switch {
	case err != nil:
		return 0, err
	case m != nil:
		seen[core.CancelKey{Route: key.Route, ID: m.id}] = m.status()
		if m.dedupe != "" {
			seen[core.CancelKey{Route: key.Route, Topic: m.topic, DedupeKey: m.dedupe}] = m.status()
		}
		return m.status(), nil
	case seen[short] != core.CancelNotFound:
		return seen[short], nil
	}
	var leased bool
	err = w.tx.QueryRowContext(ctx, w.store.withPrefix(`SELECT EXISTS (SELECT 1 FROM waybill_outbox`+where+`)`), key.Route, name, key.DedupeKey).Scan(&leased) //nolint:gosec // as above
	if leased {
		return core.CancelInFlight, err
	}
	return core.CancelNotFound, err
}

// ended explains a transaction that cannot be used any more.
func ended(op string, err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("waybill/sqlite: %s: %w: the transaction has ended already; use it before its commit or rollback (%w)", op, core.ErrInvalid, err)
	}
	return err
}

func anyKeyed(rows []core.StagedRow) bool {
	for i := range rows {
		if rows[i].DedupeKey != "" {
			return true
		}
	}
	return false
}

// stageKeyed stages rows some of which have a dedupe key, as if one after the other: in runs of those that replace
// nothing, and one by one where something is replaced.
func (s *Store) stageKeyed(ctx context.Context, tx *sql.Tx, rows []core.StagedRow) ([]core.Staged, error) {
	w := s.withdrawer(tx)
	staged := make([]core.Staged, len(rows))
	for from := 0; from < len(rows); {
		to := from + 1
		if !rows[from].Replace {
			to = runEnd(rows, from)
		}
		if err := w.stage(ctx, rows[from:to], staged[from:to]); err != nil {
			return nil, s.classify("stage", ended("stage", err))
		}
		from = to
	}
	return staged, nil
}

// runEnd returns where a run of rows that can be written together ends: before one that replaces, or that has an id of
// the run again.
func runEnd(rows []core.StagedRow, from int) int {
	ids := map[[2]string]bool{}
	for i := from; i < len(rows); i++ {
		id := [2]string{rows[i].Route, rows[i].Envelope.ID}
		if rows[i].Replace || ids[id] || i-from == rowsPerInsert {
			return i
		}
		ids[id] = true
	}
	return len(rows)
}

// stage writes a run of rows, or one that replaces.
func (w *withdrawer) stage(ctx context.Context, rows []core.StagedRow, staged []core.Staged) error {
	status := core.CancelNotFound
	if r := &rows[0]; r.Replace {
		var err error
		if status, err = w.replace(ctx, r); err != nil {
			return err
		}
	}
	fresh := make(map[[2]string]bool, len(rows))
	if err := w.store.insert(ctx, w.tx, rows, w.now, fresh, true); err != nil {
		return err
	}
	for i := range rows {
		r := &rows[i]
		staged[i] = core.Staged{ID: r.Envelope.ID, Route: r.Route, Duplicate: !fresh[[2]string{r.Route, r.Envelope.ID}], Replaced: status}
		if !staged[i].Duplicate || r.DedupeKey == "" {
			continue
		}
		// Of its own id, or of the live message with its key?
		err := w.tx.QueryRowContext(ctx, w.store.withPrefix(holderText), r.Route, r.Envelope.Topic, r.DedupeKey, r.Envelope.ID).Scan(&staged[i].ID) //nolint:gosec // as above
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	return nil
}

// replace makes room for r, unless it is staged already.
func (w *withdrawer) replace(ctx context.Context, r *core.StagedRow) (core.CancelStatus, error) {
	m, err := w.take(ctx, core.ReasonReplaced, byKeyText+notStaged, r.Route, r.Envelope.Topic, r.DedupeKey, r.Envelope.ID)
	if err != nil || m != nil {
		if m != nil {
			return m.status(), err
		}
		return 0, err
	}
	var one int
	err = w.tx.QueryRowContext(ctx, w.store.withPrefix(giveUpKeyText), r.Route, r.Envelope.Topic, r.DedupeKey, r.Envelope.ID).Scan(&one) //nolint:gosec // as above
	if errors.Is(err, sql.ErrNoRows) {
		return core.CancelNotFound, nil
	}
	return core.CancelInFlight, err
}
