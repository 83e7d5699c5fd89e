package mongo

import (
	"context"
	"errors"
	"strings"
	"testing"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"

	"github.com/waybill-go/waybill"
)

// DB-15: the class of an error of the driver for a message, for a transaction, and for the person who must act.
func TestErrorClasses(t *testing.T) {
	t.Parallel()
	command := func(code int32, labels ...string) error {
		return driver.CommandError{Code: code, Message: "m", Labels: labels}
	}
	write := func(code int) error {
		return driver.WriteException{WriteErrors: driver.WriteErrors{{Code: code, Message: "m"}}}
	}
	bulk := func(code int) error {
		return driver.BulkWriteException{WriteErrors: []driver.BulkWriteError{{WriteError: driver.WriteError{Code: code}}}}
	}
	for _, tc := range []struct {
		name   string
		err    error
		class  waybill.Class
		again  bool  // the transaction runs again
		is     error // it matches
		reason waybill.Reason
	}{
		{name: "a duplicate", err: write(11000), class: waybill.ClassUnknown},
		{name: "a duplicate that was not there before", err: raced(bulk(11000)), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "a write conflict", err: command(112, transientLabel), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "a write conflict of one write", err: write(112), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "no such transaction", err: command(251, transientLabel), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "snapshot unavailable", err: command(246, transientLabel), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "lock timeout", err: command(24, transientLabel), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "a transient error without a known code", err: command(99999, transientLabel), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "not writable primary", err: command(10107, transientLabel), class: waybill.ClassOutage},
		{name: "not primary, no secondary ok", err: command(13435), class: waybill.ClassOutage},
		{name: "interrupted by a change of state", err: command(11602, transientLabel), class: waybill.ClassOutage},
		{name: "interrupted at shutdown", err: command(11600), class: waybill.ClassOutage},
		{name: "primary stepped down", err: command(189), class: waybill.ClassOutage},
		{name: "the result of a commit is unknown", err: command(64, "UnknownTransactionCommitResult"), class: waybill.ClassOutage},
		{name: "a commit whose answer was lost", err: command(0, "UnknownTransactionCommitResult", "NetworkError"), class: waybill.ClassOutage},
		{name: "a network error in a transaction", err: command(0, "NetworkError", transientLabel), class: waybill.ClassOutage},
		{name: "no server", err: topology.ServerSelectionError{Wrapped: errors.New("no primary")}, class: waybill.ClassOutage},
		{name: "no connection", err: topology.ConnectionError{Wrapped: errors.New("refused")}, class: waybill.ClassOutage},
		{name: "closed client", err: driver.ErrClientDisconnected, class: waybill.ClassOutage},
		{name: "ended context", err: context.Canceled, class: waybill.ClassOutage},
		{name: "time limit", err: command(50), class: waybill.ClassOutage},
		{name: "exceeded time limit", err: command(262), class: waybill.ClassOutage},
		{name: "too few members for the write concern", err: driver.WriteException{WriteConcernError: &driver.WriteConcernError{Code: 64}}, class: waybill.ClassOutage},
		{name: "authentication failed", err: command(18), class: waybill.ClassOutage, is: waybill.ErrMisconfigured},
		{name: "not permitted", err: command(13), class: waybill.ClassOutage, is: waybill.ErrMisconfigured},
		{name: "no such collection", err: command(26), class: waybill.ClassOutage, is: waybill.ErrMisconfigured},
		{name: "no such index", err: command(27), class: waybill.ClassOutage, is: waybill.ErrMisconfigured},
		{name: "a standalone server", err: command(20), class: waybill.ClassOutage, is: waybill.ErrMisconfigured},
		{name: "writes are blocked", err: command(371), class: waybill.ClassOutage},
		{name: "temporarily unavailable", err: command(365), class: waybill.ClassOutage},
		{name: "interrupted", err: command(11601), class: waybill.ClassOutage},
		{name: "too many requests", err: command(462), class: waybill.ClassOutage},
		{name: "the transaction is too old", err: command(225, transientLabel), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "a prepared transaction is in the way", err: command(267, transientLabel), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "too old a transaction of one write", err: write(225), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "a prepared transaction in the way of one write", err: write(267), class: waybill.ClassOutage, again: true, is: waybill.ErrRetryTx},
		{name: "a transaction too large for the cache", err: command(373), class: waybill.ClassPermanent, reason: waybill.ReasonTooLarge},
		{name: "too large", err: write(17419), class: waybill.ClassPermanent, reason: waybill.ReasonTooLarge},
		{name: "another client's session", err: driver.ErrWrongClient, class: waybill.ClassUnknown, is: waybill.ErrInvalid},
		{name: "refused by a validator", err: write(121), class: waybill.ClassUnknown},
		{name: "the store's own error", err: waybill.Reject(errors.New("x")), class: waybill.ClassPermanent},
	} {
		got := classify("test", tc.err)
		if waybill.ClassOf(got) != tc.class || waybill.ReasonOf(got) != tc.reason && tc.reason != "" {
			t.Errorf("%s: class %s, reason %q, want %s, %q", tc.name, waybill.ClassOf(got), waybill.ReasonOf(got), tc.class, tc.reason)
		}
		if conflicts(tc.err) != tc.again {
			t.Errorf("%s: it runs again: %v", tc.name, !tc.again)
		}
		if tc.is != nil && !errors.Is(got, tc.is) {
			t.Errorf("%s: %v does not match %v", tc.name, got, tc.is)
		}
		if tc.again && !hasLabel(got, transientLabel) && !strings.HasSuffix(tc.name, "of one write") {
			t.Errorf("%s: WithTransaction would not run it again", tc.name)
		}
	}
	if classify("test", nil) != nil {
		t.Error("no error has a class")
	}
}
