package mongo

import (
	"context"
	"errors"
	"fmt"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	wire "go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// kind is the meaning of an error code of MongoDB.
type kind uint8

const (
	kindUnknown       kind = iota // a bug, or a statement of the application
	kindOutage                    // the server is away, changes its role or has no time: it may heal
	kindConflict                  // another transaction is in the way: run it again
	kindMisconfigured             // somebody must fix it
	kindTooBig                    // beyond what a document can hold
)

// kinds maps error codes. All others are unknown.
var kinds = map[int]kind{
	// Host unreachable or not found, network timeout, socket.
	6: kindOutage, 7: kindOutage, 89: kindOutage, 9001: kindOutage,
	50: kindOutage, 202: kindOutage, 262: kindOutage, // time is over
	64: kindOutage, 100: kindOutage, // too few members for the write concern
	91: kindOutage, 189: kindOutage, 10107: kindOutage, 10058: kindOutage, // no primary, or it stops or steps down
	11600: kindOutage, 11602: kindOutage, 13435: kindOutage, 13436: kindOutage, 133: kindOutage, 134: kindOutage,
	// Cursors, memory, disk.
	43: kindOutage, 146: kindOutage, 237: kindOutage, 290: kindOutage, 317: kindOutage, 14031: kindOutage,
	// Writes are blocked or limited for a while, or a command was ended: none of it is the message's fault.
	371: kindOutage, 365: kindOutage, 11601: kindOutage, 462: kindOutage,
	225: kindConflict, 267: kindConflict, // the transaction is too old, or another one is being committed
	24: kindConflict, 112: kindConflict, 246: kindConflict, 251: kindConflict, 244: kindConflict,
	// Access; no such collection.
	8000: kindMisconfigured, unauthorized: kindMisconfigured, 18: kindMisconfigured, 26: kindMisconfigured,
	20: kindMisconfigured, 263: kindMisconfigured, 303: kindMisconfigured, // no transactions
	27: kindMisconfigured, 73: kindMisconfigured, 17007: kindMisconfigured, 291: kindMisconfigured, // no such index
	10334: kindTooBig, 17419: kindTooBig, 17420: kindTooBig, 257: kindTooBig, 373: kindTooBig,
}

const unauthorized = 13

// cures say what to do about codes that mean a misconfiguration.
var cures = map[int]string{
	18:   "check the user, the password and authSource",
	8000: "check the user, the password and authSource", 20: noTransactions, 263: noTransactions, 303: noTransactions,
}

const (
	noTransactions = "the server has no transactions: use a replica set (one member is enough)"
	noSchema       = "a collection or an index is missing or another one: run Migrate, or set Options.AutoMigrate"
)

func hasLabel(err error, label string) bool {
	le, ok := errors.AsType[driver.LabeledError](err)
	return ok && le.HasErrorLabel(label)
}

// code returns the first error code of err that is known here, else any, else 0.
func code(err error) int {
	se, ok := errors.AsType[driver.ServerError](err)
	if !ok {
		// An error of the handshake, as of a wrong password, comes without a type of the driver's own.
		e, _ := errors.AsType[wire.Error](err)
		return int(e.Code)
	}
	first := 0
	for _, c := range se.ErrorCodes() {
		if kinds[c] != kindUnknown {
			return c
		}
		if first == 0 {
			first = c
		}
	}
	return first
}

// conflicts reports whether the transaction can run again at once, since another one was in its way.
func conflicts(err error) bool {
	switch {
	case err == nil, driver.IsNetworkError(err), driver.IsTimeout(err), hasLabel(err, "UnknownTransactionCommitResult"):
		return false
	case kinds[code(err)] == kindOutage:
		return false
	}
	return kinds[code(err)] == kindConflict || hasLabel(err, transientLabel)
}

const transientLabel = "TransientTransactionError"

// raceError reports that another transaction has committed what this one could not see, since its snapshot is older.
// The driver's WithTransaction runs a transaction again for the label.
type raceError struct{ err error }

func (e *raceError) Error() string {
	return "another transaction wrote the same document: " + e.err.Error()
}
func (e *raceError) Unwrap() error                   { return e.err }
func (e *raceError) HasErrorLabel(label string) bool { return label == transientLabel }

// raced makes a duplicate that was not there when the transaction looked a reason to run it again.
func raced(err error) error {
	if err != nil && driver.IsDuplicateKeyError(err) {
		return &raceError{err}
	}
	return err
}

// classify wraps an error of the driver with its class. Unlike the driver it shows no values of documents.
func classify(op string, err error) error {
	if err == nil || errors.Is(err, waybill.ErrInvalid) {
		return err
	}
	if _, ok := errors.AsType[*waybill.Error](err); ok {
		return err
	}
	c := code(err)
	switch {
	case conflicts(err):
		return outage(op, fmt.Errorf("%w (%w)", waybill.ErrRetryTx, err))
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), driver.IsTimeout(err), down(err),
		hasLabel(err, "UnknownTransactionCommitResult"), errors.Is(err, driver.ErrClientDisconnected):
		return outage(op, err)
	case errors.Is(err, driver.ErrWrongClient):
		return fmt.Errorf("waybill/mongo: %s: %w: the session is another client's: use one client for the store and the transaction (%w)",
			op, waybill.ErrInvalid, err)
	}
	switch kinds[c] {
	case kindOutage, kindConflict:
		return outage(op, err)
	case kindMisconfigured:
		if c == unauthorized {
			return misconfigured(op, refused(err))
		}
		cure := cures[c]
		if cure == "" {
			cure = noSchema
		}
		return misconfigured(op, fmt.Errorf("%s (%w)", cure, err))
	case kindTooBig:
		return &waybill.Error{Op: "waybill/mongo: " + op, Class: waybill.ClassPermanent, Reason: waybill.ReasonTooLarge, Err: err}
	case kindUnknown:
	}
	return &waybill.Error{Op: "waybill/mongo: " + op, Err: err}
}

// isSelection reports whether no server could be chosen: none answers, or none is the primary.
func isSelection(err error) bool {
	_, selection := errors.AsType[topology.ServerSelectionError](err)
	_, connection := errors.AsType[topology.ConnectionError](err)
	return selection || connection
}

// down reports whether the server cannot be used now, or another transaction was in the way.
func down(err error) bool {
	c := kinds[code(err)]
	if c == kindMisconfigured {
		return false // it ends the connection, too, and does not heal by itself
	}
	return driver.IsNetworkError(err) || isSelection(err) || c == kindOutage || conflicts(err)
}

func outage(op string, err error) error {
	return &waybill.Error{Op: "waybill/mongo: " + op, Class: waybill.ClassOutage, Err: err}
}

// misconfigured makes an error that matches waybill.ErrMisconfigured. Its class is outage: it costs no attempt.
func misconfigured(op string, err error) error {
	return outage(op, fmt.Errorf("%w: %w", waybill.ErrMisconfigured, err))
}

// isAnswer reports whether err is an answer about an outcome, and not a failure.
func isAnswer(err error) bool {
	return errors.Is(err, core.ErrChanged) || errors.Is(err, core.ErrFenced)
}
