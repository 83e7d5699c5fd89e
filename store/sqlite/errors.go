package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// kind is the meaning of a result code of SQLite.
type kind uint8

const (
	kindUnknown       kind = iota // a bug, or a statement of the application
	kindOutage                    // locked, full, or the disk does not answer: it may heal
	kindMisconfigured             // the file or the schema is not what it should be
	kindTooBig                    // beyond what a row can hold
)

// kindOf maps primary result codes. All others are unknown.
func kindOf(code int) kind {
	switch code & 0xff {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_ABORT,
		sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN,
		sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_NOLFS:
		return kindOutage
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH,
		sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT:
		return kindMisconfigured
	case sqlite3.SQLITE_TOOBIG:
		return kindTooBig
	}
	return kindUnknown
}

// classify wraps an error of the driver with its class.
func classify(op string, err error) error {
	var known *waybill.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, waybill.ErrInvalid) {
		return err
	}
	var se *sqlite.Error
	if !errors.As(err, &se) {
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, sql.ErrConnDone),
			errors.Is(err, driver.ErrBadConn),
			// database/sql closed it with the transaction, since the context ended
			strings.HasSuffix(err.Error(), "statement is closed"):
			return outage(op, err)
		}
		return &waybill.Error{Op: "waybill/sqlite: " + op, Err: err}
	}
	switch kindOf(se.Code()) {
	case kindOutage:
		if busy(err) {
			err = fmt.Errorf("%w (%w)", waybill.ErrRetryTx, err)
		}
		return outage(op, err)
	case kindMisconfigured:
		return misconfigured(op, fmt.Errorf("restore the file, or make it and its directory readable and writable for this user (%w)", err))
	case kindTooBig:
		return &waybill.Error{Op: "waybill/sqlite: " + op, Class: waybill.ClassPermanent, Reason: waybill.ReasonTooLarge, Err: err}
	case kindUnknown:
		if text := se.Error(); strings.Contains(text, "no such table") || strings.Contains(text, "no such column") ||
			strings.Contains(text, "has no column named") || strings.Contains(text, "no such index") ||
			strings.Contains(text, "ON CONFLICT clause does not match") {
			return misconfigured(op, fmt.Errorf("the schema is missing, old or not Waybill's: "+
				"run Migrate on this file, or set Options.AutoMigrate, or choose another Options.Prefix (%w)", err))
		}
	}
	return &waybill.Error{Op: "waybill/sqlite: " + op, Err: err}
}

// classify does the same, but reports every error of a closed store as waybill.ErrClosed.
func (s *Store) classify(op string, err error) error {
	if err != nil && s.closed.Load() {
		return fmt.Errorf("waybill/sqlite: %s: %w", op, waybill.ErrClosed)
	}
	return classify(op, err)
}

func outage(op string, err error) error {
	return &waybill.Error{Op: "waybill/sqlite: " + op, Class: waybill.ClassOutage, Err: err}
}

// misconfigured makes an error that matches waybill.ErrMisconfigured. Its class is outage: it costs no attempt.
func misconfigured(op string, err error) error {
	return &waybill.Error{Op: "waybill/sqlite: " + op, Class: waybill.ClassOutage, Err: fmt.Errorf("%w: %w", waybill.ErrMisconfigured, err)}
}

// busy reports that another connection holds a lock.
func busy(err error) bool {
	var se *sqlite.Error
	return errors.As(err, &se) && (se.Code()&0xff == sqlite3.SQLITE_BUSY || se.Code()&0xff == sqlite3.SQLITE_LOCKED)
}

// isAnswer reports whether err is an answer about an outcome, and not a failure.
func isAnswer(err error) bool {
	return errors.Is(err, core.ErrChanged) || errors.Is(err, core.ErrFenced)
}
