package dberr

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
)

func TestClasses(t *testing.T) {
	t.Parallel()
	pg := func(code string) error { return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code}) }
	for _, tc := range []struct {
		err           error
		class         waybill.Class
		misconfigured bool
	}{
		{pg("08006"), waybill.ClassOutage, false},
		{pg("08001"), waybill.ClassOutage, false},
		{pg("53300"), waybill.ClassOutage, false}, // too many connections
		{pg("53100"), waybill.ClassOutage, false}, // disk full
		{pg("57014"), waybill.ClassOutage, false}, // cancelled
		{pg("57P01"), waybill.ClassOutage, false}, // shutdown
		{pg("57P03"), waybill.ClassOutage, false}, // starting up
		{pg("58030"), waybill.ClassOutage, false},
		{pg("25006"), waybill.ClassOutage, false}, // a standby
		{pg("40001"), waybill.ClassOutage, false},
		{pg("40P01"), waybill.ClassOutage, false},
		{pg("55P03"), waybill.ClassRejected, false},
		{pg("22021"), waybill.ClassRejected, false},
		{pg("23514"), waybill.ClassRejected, false},
		{pg("P0001"), waybill.ClassRejected, false},
		{pg("28P01"), waybill.ClassOutage, true},
		{pg("28000"), waybill.ClassOutage, true},
		{pg("3D000"), waybill.ClassOutage, true},
		{pg("3F000"), waybill.ClassOutage, true},
		{pg("42P01"), waybill.ClassOutage, true},
		{pg("42703"), waybill.ClassOutage, true},
		{pg("42501"), waybill.ClassOutage, true},
		{pg("25P02"), waybill.ClassUnknown, false}, // an earlier statement failed
		{pg("XX000"), waybill.ClassUnknown, false},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, waybill.ClassOutage, false},
		{io.ErrUnexpectedEOF, waybill.ClassOutage, false},
		{driver.ErrBadConn, waybill.ClassOutage, false},
		{sql.ErrConnDone, waybill.ClassOutage, false},
		{context.DeadlineExceeded, waybill.ClassOutage, false},
		{errors.New("something"), waybill.ClassUnknown, false},
	} {
		err := Failure("test", tc.err)
		if waybill.ClassOf(err) != tc.class || errors.Is(err, waybill.ErrMisconfigured) != tc.misconfigured || !errors.Is(err, tc.err) {
			t.Errorf("%v: class %s, misconfigured %v", tc.err, waybill.ClassOf(err), errors.Is(err, waybill.ErrMisconfigured))
		}
		if state := SQLState(tc.err); errors.Is(err, waybill.ErrRetryTx) != (state == "40001" || state == "40P01") {
			t.Errorf("%v: to be run again: %v", tc.err, errors.Is(err, waybill.ErrRetryTx))
		}
	}
	if Failure("test", nil) != nil {
		t.Error("no error became one")
	}
}

// An outage that ends by no retry names its cure.
func TestOutagesNameTheirCure(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{"53100": "make room", "53300": "max_connections"} {
		if err := Failure("stage", &pgconn.PgError{Code: code}); !strings.Contains(err.Error(), want) || errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("%s: %v does not say %q", code, err, want)
		}
	}
}
