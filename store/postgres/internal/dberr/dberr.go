package dberr

import (
	"context"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
)

// classes maps SQLSTATEs, or their first two letters, to classes. The longer one wins. A permanent class here is a
// misconfiguration in errors of our own statements; see Failure.
var classes = map[string]waybill.Class{
	"08":    waybill.ClassOutage,    // connection
	"53":    waybill.ClassOutage,    // too many connections, out of memory, disk full
	"57":    waybill.ClassOutage,    // shutdown, cannot connect now, cancelled
	"58":    waybill.ClassOutage,    // the server's own input and output
	"25006": waybill.ClassOutage,    // read only: a standby, a failover is under way
	"40":    waybill.ClassOutage,    // serialisation failure, deadlock: retried here first
	"55P03": waybill.ClassRejected,  // lock timeout
	"26000": waybill.ClassPermanent, // a prepared statement is on another connection: a pooler
	"42P05": waybill.ClassPermanent, // the same
	"28":    waybill.ClassPermanent, // wrong user or password
	"3D":    waybill.ClassPermanent, // no such database
	"3F":    waybill.ClassPermanent, // no such schema
	"42":    waybill.ClassPermanent, // no such table or column, no permission, not our SQL
	"22":    waybill.ClassRejected,  // a value that the database does not take
	"23":    waybill.ClassRejected,  // a constraint, somebody's trigger
	"P0":    waybill.ClassRejected,  // raised by somebody's trigger
}

// NoUniqueIndex says what to do about ids that are not unique.
const NoUniqueIndex = "the unique index on (route, id) is missing: run the migrations"

const behindPooler = "a pooler shares connections by transaction: set default_query_exec_mode=exec in the connection string"

// cures says what to do about a misconfiguration, and about an outage that does not end by itself.
var cures = map[string]string{
	"42P01": "a table is missing: run the migrations (waybill migrate up, or Migrate), or pass a transaction of the database that has it",
	"42703": "a column is missing: the schema is older or of another shape: run the migrations",
	"42883": "a function or operator is missing: the schema is of another shape, or the server is older than PostgreSQL 13",
	"42P10": NoUniqueIndex,
	"26000": behindPooler,
	"42P05": behindPooler,
	"08P01": behindPooler,
	"55000": "the server is a standby: connect to the primary",
	"42804": "a column has another type: the schema is of another shape: run the migrations",
	"3F000": "the schema is missing: run the migrations (waybill migrate up, or Migrate), correct schema in the settings (Options.Schema), or pass a transaction of the right database",
	"42501": "the role lacks a permission: grant what waybill migrate grants (Migrations.Grants) prints; waybill validate names what a relay's role lacks",
	"3D000": "the database is missing: create it, or correct the connection string",
	"25006": "the server or the transaction is read only: connect to the primary, or begin a transaction that may write",
	"53100": "the disk of the database is full: make room there; nothing that was committed is lost",
	"53300": "the database has no free connection: raise its max_connections, or lower the sizes of the pools",
	"28P01": "wrong user or password: correct the connection string",
	"28000": "the server does not let this user in: check the user, TLS and pg_hba.conf",
}

// Failure wraps err with the operation and its class.
func Failure(op string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*waybill.Error](err); ok {
		return err
	}
	e := &waybill.Error{Op: "waybill/postgres: " + op, Class: Class(err), Err: err}
	cure := cures[SQLState(err)]
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok && cure == "" && SQLState(err) == "" {
		cure = "cannot connect: check the address in the connection string, and that the server runs"
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
			cure = "cannot connect: renew the server's certificate, or correct the clock of this machine"
		}
	}
	switch {
	case Again(err):
		e.Err = fmt.Errorf("%w (%w)", waybill.ErrRetryTx, err)
	case e.Class == waybill.ClassPermanent:
		if cure == "" {
			cure = "the database does not know or not allow what is asked"
		}
		*e = *Misconfigured(op, "%s (%w)", cure, err)
	case cure != "":
		e.Err = fmt.Errorf("%s (%w)", cure, err)
	}
	return e
}

// Misconfigured makes an error that matches waybill.ErrMisconfigured.
func Misconfigured(op, format string, args ...any) *waybill.Error {
	return &waybill.Error{
		Op: "waybill/postgres: " + op, Class: waybill.ClassOutage,
		Err: fmt.Errorf("%w: "+format, append([]any{waybill.ErrMisconfigured}, args...)...),
	}
}

// ReadOnly returns the outage of a server or a session that takes no writes.
func ReadOnly(op string) *waybill.Error {
	return &waybill.Error{Op: "waybill/postgres: " + op, Class: waybill.ClassOutage, Err: errors.New(cures["25006"])}
}

// Class returns the class of an error of the database, also of one that a handler got from its own statements.
func Class(err error) waybill.Class {
	if state := SQLState(err); state != "" {
		if c, ok := classes[state]; ok {
			return c
		}
		if len(state) == 5 {
			return classes[state[:2]] // unknown if absent
		}
		return waybill.ClassUnknown
	}
	if unreachable(err) {
		return waybill.ClassOutage
	}
	return waybill.ClassUnknown
}

// SQLState returns the SQLSTATE in err's chain: pgx's, or that of any driver whose error has a method for it (lib/pq).
func SQLState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// unreachable reports whether err says that the connection could not be made, was lost, or gave no answer in time.
func unreachable(err error) bool {
	var (
		connect *pgconn.ConnectError
		network net.Error
	)
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) || pgconn.Timeout(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Again reports whether the whole transaction may simply be run again: it was rolled back for the sake of another one.
func Again(err error) bool {
	switch SQLState(err) {
	case "40001", "40P01":
		return true
	}
	return false
}

// NotOpen explains a transaction that cannot be used; nil if err is something else.
func NotOpen(op string, err error) error {
	switch {
	case errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("waybill/postgres: %s: %w: the transaction has ended already; use it before its commit or rollback (%w)",
			op, waybill.ErrInvalid, err)
	case SQLState(err) == "25P02":
		return fmt.Errorf("waybill/postgres: %s: %w: an earlier statement of this transaction failed; "+
			"return that statement's error and roll back, or run it in a savepoint (%w)", op, waybill.ErrInvalid, err)
	}
	return nil
}

// CommitError explains why the transaction that fn was given was not committed.
func CommitError(op string, err error) error {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return &waybill.Error{
			Op: "waybill/postgres: " + op, Class: waybill.ClassRejected,
			Err: fmt.Errorf("the database rolled back, since the code went on after a failed statement: "+
				"return that statement's error, or use a savepoint: %w", err),
		}
	}
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("waybill/postgres: %s: the code ended the transaction itself; leave that to whoever began it: %w", op, err)
	}
	return Failure(op, err)
}
