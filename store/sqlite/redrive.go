package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/waybill-go/waybill/core"
)

var _ core.Redriver = (*Store)(nil)

const (
	// A first write, so that a transaction has the write lock before it reads.
	lockText = `UPDATE waybill_meta SET value = value WHERE name = 'token'`
	// A row that is put back waits until now and holds back later ones of its key: the next claim, of whatever process,
	// promotes it as it does a retry, and then looks behind the place where it stands.
	requeueText = `UPDATE waybill_outbox SET state = 1, hold = 2, wake_at = ?2, settled_at = NULL, token = 0, maybe_sent = maybe_sent OR crashes > 0, attempts = 0, crashes = 0,
		reason = NULL, error = NULL, error_at = NULL,
		expires_at = CASE WHEN expires_at > ?2 THEN expires_at END,
		attrs = CASE WHEN expires_at <= ?2 AND json_valid(attrs) THEN json_remove(attrs, '$.a.expirytime') ELSE attrs END
		WHERE seq = ?1 AND state IN (1, 4, 5)`
	giveUpText   = `UPDATE waybill_outbox SET state = 5, hold = 0, wake_at = NULL, reason = ?3, settled_at = ?2, token = 0 WHERE seq = ?1 AND state IN (1, 4, 5)`
	outlivedText = `SELECT EXISTS (SELECT 1 FROM waybill_outbox WHERE route = ?1 AND topic = ?2 AND dedupe_key = ?3 AND dedupe_key IS NOT NULL AND settled_at IS NULL)`
)

// Redrive puts failed and abandoned records back, in one bounded step; see [core.Redriver]. It finds them as List does,
// before it takes SQLite's write lock, and then looks at each again. It never touches what a relay holds.
func (s *Store) Redrive(ctx context.Context, req core.RedriveRequest) (core.Redriven, error) {
	req, err := core.CheckRedrive(req)
	if err != nil {
		return core.Redriven{}, err
	}
	if _, err := s.prepared(ctx, "redrive"); err != nil {
		return core.Redriven{}, err
	}
	found, err := s.list(ctx, &req.Filter, req.Page, req.Takes)
	if err != nil {
		return core.Redriven{}, s.classify("redrive", err)
	}
	var d redriver
	step := func(tx *sql.Tx) error {
		d = redriver{store: s, tx: tx, req: &req, now: s.now(), out: core.Redriven{Next: found.Next}, live: map[[3]string]bool{}}
		return d.run(ctx, found.Records)
	}
	switch {
	case len(found.Records) == 0:
		return core.Redriven{Next: found.Next}, nil
	case req.DryRun:
		err = s.read(ctx, "redrive", step)
	default:
		err = s.operate(ctx, "redrive", func(tx *sql.Tx) (bool, error) { return true, step(tx) })
	}
	return d.out, err
}

// read runs fn in a transaction that reads one snapshot.
func (s *Store) read(ctx context.Context, op string, fn func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return s.classify(op, err)
	}
	defer func() { _ = tx.Rollback() }()
	return s.classify(op, fn(tx))
}

// operate runs fn in a transaction that has the write lock. If it commits, claims look at everything again, and relays
// that wait in this process wake up; in others they see the commit.
func (s *Store) operate(ctx context.Context, op string, fn func(tx *sql.Tx) (commit bool, err error)) error {
	err := s.write(ctx, op, func(tx *sql.Tx) (bool, error) {
		if _, err := tx.ExecContext(ctx, s.text.lock); err != nil {
			return false, err
		}
		commit, err := fn(tx)
		if commit && err == nil {
			for _, l := range s.scans.laps {
				l.done = time.Time{}
			}
		}
		return commit, err
	})
	if err == nil {
		s.Wake()
	}
	return err
}

// redriver is one step of Redrive in its transaction.
type redriver struct {
	store *Store
	tx    *sql.Tx
	req   *core.RedriveRequest
	now   int64
	last  int64 // sequence given out
	out   core.Redriven
	live  map[[3]string]bool // dedupe keys that this step gave a live message
}

func (d *redriver) run(ctx context.Context, found []core.Stored) error {
	if err := d.tx.QueryRowContext(ctx, d.store.text.sequence).Scan(&d.last); err != nil {
		return err
	}
	for i := range found {
		r, err := d.store.reread(ctx, d.tx, found[i].Seq, d.now)
		if err != nil {
			return err
		}
		if r == nil || !d.store.matches(&d.req.Filter, r) || !d.req.Takes(r.State, r.Reason) {
			continue // somebody was faster
		}
		cause, err := d.refusal(ctx, r)
		if err != nil {
			return err
		}
		d.out.Count(cause)
		if cause != "" {
			continue
		}
		d.live[dedupeKey(r)] = true
		if d.req.DryRun {
			continue
		}
		if _, err := d.tx.ExecContext(ctx, d.store.text.requeue, r.Seq, d.now); err != nil {
			return err
		}
	}
	return nil
}

// reread returns a row as it is now, or nil.
func (s *Store) reread(ctx context.Context, tx *sql.Tx, seq, now int64) (*row, error) {
	r, err := s.scanRow(tx.QueryRowContext(ctx, s.text.stored, seq).Scan, now)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil //nolint:nilnil // there is none
	}
	return &r, err
}

// refusal returns why r is not to be put back, or "".
func (d *redriver) refusal(ctx context.Context, r *row) (string, error) {
	taken, err := d.store.outlived(ctx, d.tx, r)
	age := time.Duration(0)
	if d.req.Horizon > 0 {
		age = r.Age
	}
	switch {
	case err != nil:
		return "", err
	case taken || r.DedupeKey != "" && d.live[dedupeKey(r)]:
		return core.RefusedDuplicate, nil
	case d.req.Force:
	case r.Envelope.Expired(time.UnixMicro(d.now)):
		return core.RefusedExpired, nil
	case age > d.req.Horizon:
		return core.RefusedHorizon, nil
	case r.State == core.StateAbandoned && r.Envelope.Key != "" && r.Seq < d.last && (!d.req.BlockAfterAbandon || !r.Reason.Blocks()):
		return core.RefusedOrder, nil
	}
	return "", nil
}

func dedupeKey(r *row) [3]string { return [3]string{r.Route, r.Envelope.Topic, r.DedupeKey} }

// outlived reports whether a live message has the dedupe key of the abandoned row r.
func (s *Store) outlived(ctx context.Context, tx *sql.Tx, r *row) (taken bool, err error) {
	if r.DedupeKey == "" || r.State != core.StateAbandoned {
		return false, nil
	}
	err = tx.QueryRowContext(ctx, s.text.outlived, r.Route, r.Envelope.Topic, r.DedupeKey).Scan(&taken)
	return taken, err
}
