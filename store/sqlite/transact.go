package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

const (
	// lockText changes nothing. It takes SQLite's write lock before anything is read, also where transactions begin
	// deferred.
	lockText = `UPDATE waybill_meta SET value = value WHERE name = 'version'`
	// lastText is the last sequence that was drawn.
	lastText = `SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'waybill_outbox'`
)

// statements are the prepared ones of frequent texts, by text.
type statements map[string]*sql.Stmt

// hot are the texts of statements.
func hot() []string {
	return []string{
		inboxText, lockText, lastText, memberText, ownedText, pageText, findText, loadText, rangeText,
		keyRangeText, keyWaitingText, keyBlockingText,
		waitingText, blockingText, anyNoticeText, noticeText, heldText, holdText, freeText,
		dropText, publishText, keepText, settleText,
		stampText, ownRetriesText, retriesText, timersText, nextRetryText, nextTimerText, renewText, partitionsText, membersText,
	}
}

func (st statements) close() {
	for _, stmt := range st {
		_ = stmt.Close()
	}
}

// prepared returns the prepared statements. Before the first use it migrates if AutoMigrate is set.
func (s *Store) prepared(ctx context.Context, op string) (statements, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, s.classify(op, sql.ErrConnDone)
	}
	if s.stmts != nil {
		return s.stmts, nil
	}
	if s.opts.AutoMigrate && !s.migrated.Load() {
		if err := s.Migrate(ctx); err != nil {
			return nil, err
		}
		s.migrated.Store(true)
	}
	if err := s.fits(ctx, s.db); err != nil {
		return nil, s.classify(op, err)
	}
	st := statements{}
	for _, text := range hot() {
		stmt, err := s.db.PrepareContext(ctx, s.sql(text)) //nolint:sqlclosecheck // Close closes it
		if err != nil {
			st.close()
			return nil, s.classify(op, err)
		}
		st[text] = stmt
	}
	s.stmts = st
	return st, nil
}

// sql returns a text with the store's prefix, and with the replacements of package sqltext.
func (s *Store) sql(text string) string {
	if done, ok := s.texts.Load(text); ok {
		return done.(string)
	}
	done := s.words.Replace(text)
	s.texts.Store(text, done)
	return done
}

// enter waits for this process's turn to write, so that its writers queue instead of polling for SQLite's lock.
func (s *Store) enter(ctx context.Context) (exit func(), err error) {
	select {
	case s.gate <- struct{}{}:
	default:
		t := time.NewTimer(s.opts.BusyTimeout)
		defer t.Stop()
		select {
		case s.gate <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.C:
			return nil, fmt.Errorf("another write of this process lasted longer than %s: "+
				"keep transactions and inbox handlers short", s.opts.BusyTimeout)
		}
	}
	return func() { <-s.gate }, nil
}

// alone runs fn in a transaction of the store and commits it if fn says so. The first statement of fn must be a write,
// so that it takes the lock at once, with any default of the database.
func (s *Store) alone(ctx context.Context, op string, fn func(tx *sql.Tx) (commit bool, err error)) error {
	exit, err := s.enter(ctx)
	if err != nil {
		return outage(op, err)
	}
	defer exit()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return s.classify(op, err)
	}
	defer func() { _ = tx.Rollback() }() // nothing is left to roll back after a commit
	commit, err := fn(tx)
	if err != nil {
		return s.classify(op, err)
	}
	if !commit {
		return nil
	}
	if err := tx.Commit(); err != nil {
		return s.classify(op, err)
	}
	return nil
}

// write runs fn in a transaction that has the write lock, and commits it if fn says so.
func (s *Store) write(ctx context.Context, op string, fn func(w *work) (commit bool, err error)) error {
	st, err := s.prepared(ctx, op)
	if err != nil {
		return err
	}
	return s.alone(ctx, op, func(tx *sql.Tx) (bool, error) {
		w := &work{s: s, tx: tx, ready: st}
		if _, err := w.exec(ctx, lockText); err != nil {
			return false, err
		}
		w.now = s.now()
		return fn(w)
	})
}

// read runs fn in a transaction that reads one snapshot and locks nothing.
func (s *Store) read(ctx context.Context, op string, fn func(w *work) error) error {
	st, err := s.prepared(ctx, op)
	if err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // these begin deferred
	if err != nil {
		return s.classify(op, err)
	}
	defer func() { _ = tx.Rollback() }()
	return s.classify(op, fn(&work{s: s, tx: tx, ready: st, now: s.now()}))
}

// work is a transaction with facts that were read in it.
type work struct {
	s     *Store
	tx    *sql.Tx
	ready statements // none in a transaction of the application
	now   int64
	own   map[string]core.Slots // what self owns; nil = not looked up yet
}

func (w *work) query(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if stmt := w.ready[text]; stmt != nil {
		return w.tx.StmtContext(ctx, stmt).QueryContext(ctx, args...) //nolint:sqlclosecheck // the transaction closes it
	}
	//nolint:gosec // nothing foreign in the text but Options.Prefix, which Validate has checked
	return w.tx.QueryContext(ctx, w.s.sql(text), args...)
}

// exec returns the number of changed rows.
func (w *work) exec(ctx context.Context, text string, args ...any) (int, error) {
	var res sql.Result
	var err error
	if stmt := w.ready[text]; stmt != nil {
		res, err = w.tx.StmtContext(ctx, stmt).ExecContext(ctx, args...) //nolint:sqlclosecheck // the transaction closes it
	} else {
		res, err = w.tx.ExecContext(ctx, w.s.sql(text), args...) //nolint:gosec // see query
	}
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// each calls scan for each row until scan returns false.
func (w *work) each(ctx context.Context, scan func(rows *sql.Rows) (more bool, err error), text string, args ...any) error {
	rows, err := w.query(ctx, text, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if more, err := scan(rows); err != nil || !more {
			return err
		}
	}
	return rows.Err()
}

// one scans the first row and reports whether there is one.
func (w *work) one(ctx context.Context, dest []any, text string, args ...any) (found bool, err error) {
	err = w.each(ctx, func(rows *sql.Rows) (bool, error) {
		found = true
		return false, rows.Scan(dest...)
	}, text, args...)
	return found, err
}

func (w *work) last(ctx context.Context) (last int64, err error) {
	_, err = w.one(ctx, []any{&last}, lastText)
	return last, err
}

// ended explains the error of a transaction that has ended.
func ended(op string, err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("waybill/sqlite: %s: %w: the transaction has ended already; "+
			"use it before its commit or rollback (%w)", op, waybill.ErrInvalid, err)
	}
	return err
}
