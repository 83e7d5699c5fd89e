package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/core"
)

func TestClasses(t *testing.T) {
	t.Parallel()
	pg := func(code string) error { return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code}) }
	for _, tc := range []struct {
		err           error
		class         core.Class
		misconfigured bool
	}{
		{pg("08006"), core.ClassOutage, false},
		{pg("08001"), core.ClassOutage, false},
		{pg("53300"), core.ClassOutage, false}, // too many connections
		{pg("53100"), core.ClassOutage, false}, // disk full
		{pg("57014"), core.ClassOutage, false}, // cancelled
		{pg("57P01"), core.ClassOutage, false}, // shutdown
		{pg("57P03"), core.ClassOutage, false}, // starting up
		{pg("58030"), core.ClassOutage, false},
		{pg("25006"), core.ClassOutage, false}, // a standby
		{pg("40001"), core.ClassOutage, false},
		{pg("40P01"), core.ClassOutage, false},
		{pg("55P03"), core.ClassRejected, false},
		{pg("22021"), core.ClassRejected, false},
		{pg("23514"), core.ClassRejected, false},
		{pg("P0001"), core.ClassRejected, false},
		{pg("28P01"), core.ClassOutage, true},
		{pg("28000"), core.ClassOutage, true},
		{pg("3D000"), core.ClassOutage, true},
		{pg("3F000"), core.ClassOutage, true},
		{pg("42P01"), core.ClassOutage, true},
		{pg("42703"), core.ClassOutage, true},
		{pg("42501"), core.ClassOutage, true},
		{pg("25P02"), core.ClassUnknown, false}, // an earlier statement failed
		{pg("XX000"), core.ClassUnknown, false},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, core.ClassOutage, false},
		{io.ErrUnexpectedEOF, core.ClassOutage, false},
		{driver.ErrBadConn, core.ClassOutage, false},
		{sql.ErrConnDone, core.ClassOutage, false},
		{context.DeadlineExceeded, core.ClassOutage, false},
		{errors.New("something"), core.ClassUnknown, false},
	} {
		err := failure("test", tc.err)
		if core.ClassOf(err) != tc.class || errors.Is(err, core.ErrMisconfigured) != tc.misconfigured || !errors.Is(err, tc.err) {
			t.Errorf("%v: class %s, misconfigured %v", tc.err, core.ClassOf(err), errors.Is(err, core.ErrMisconfigured))
		}
		if state := sqlState(tc.err); errors.Is(err, core.ErrRetryTx) != (state == "40001" || state == "40P01") {
			t.Errorf("%v: to be run again: %v", tc.err, errors.Is(err, core.ErrRetryTx))
		}
	}
	if failure("test", nil) != nil {
		t.Error("no error became one")
	}
}
