package waybillmysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
)

// kind is the meaning of an error number of the server.
type kind uint8

const (
	kindUnknown       kind = iota // a bug, or a statement of the application
	kindOutage                    // away, full, overloaded, read-only: it may heal
	kindRetry                     // another transaction won
	kindMisconfigured             // a table, a privilege or the account is not what it should be
	kindTooBig                    // beyond what a row or a packet can hold
)

const (
	duplicateEntry = 1062
	packetTooLarge = 1153
	lockTimeout    = 1205
	noPreparing    = 1461 // max_prepared_stmt_count
	notSure        = 1690 // a number that is out of range
)

// kinds are the error numbers that have a meaning here. All others are unknown.
var kinds = map[uint16]kind{
	1020: kindRetry, 1213: kindRetry, 1412: kindRetry, 1614: kindRetry, 3101: kindRetry,
	1021: kindOutage, 1037: kindOutage, 1038: kindOutage, 1040: kindOutage, 1041: kindOutage, 1047: kindOutage, 1053: kindOutage,
	1114: kindOutage, 1129: kindOutage, 1152: kindOutage, 1158: kindOutage, 1159: kindOutage, 1160: kindOutage, 1161: kindOutage,
	1184: kindOutage, 1203: kindOutage, 1205: kindOutage, 1226: kindOutage, 1290: kindOutage, 1317: kindOutage, 1836: kindOutage,
	1927: kindOutage, 1969: kindOutage, 2006: kindOutage, 2013: kindOutage, 3024: kindOutage, 3100: kindOutage, 3572: kindOutage,
	1044: kindMisconfigured, 1045: kindMisconfigured, 1046: kindMisconfigured, 1049: kindMisconfigured, 1054: kindMisconfigured,
	1064: kindMisconfigured, 1130: kindMisconfigured, 1142: kindMisconfigured, 1143: kindMisconfigured, 1146: kindMisconfigured,
	1176: kindMisconfigured, 1227: kindMisconfigured, 1251: kindMisconfigured, 1665: kindMisconfigured, 1370: kindMisconfigured, 1698: kindMisconfigured,
	1792: kindMisconfigured,
	1820: kindMisconfigured, 1862: kindMisconfigured, 4031: kindOutage,
	1118: kindTooBig, 1153: kindTooBig, 1301: kindTooBig, 1406: kindTooBig, 3140: kindTooBig,
}

// number returns the server's error number, or 0.
func number(err error) uint16 {
	if me := new(mysql.MySQLError); errors.As(err, &me) {
		return me.Number
	}
	return 0
}

func kindOf(err error) kind {
	var netError net.Error
	switch {
	case number(err) != 0:
		return kinds[number(err)]
	case errors.Is(err, mysql.ErrPktTooLarge):
		return kindTooBig
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, driver.ErrBadConn),
		errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, mysql.ErrBusyBuffer), errors.Is(err, mysql.ErrMalformPkt),
		errors.Is(err, sql.ErrConnDone), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &netError),
		strings.HasSuffix(err.Error(), "bad connection"): // lost while it was made: the driver exports no value
		return kindOutage
	}
	return kindUnknown
}

// classify wraps an error of the driver in a *waybill.Error. It leaves errors alone that have a class, and invalid
// input.
func classify(op string, err error) error {
	if err == nil || waybill.ClassOf(err) != waybill.ClassUnknown || errors.Is(err, waybill.ErrInvalid) {
		return err
	}
	e := &waybill.Error{Op: "waybill/mysql: " + op, Class: waybill.ClassUnknown, Err: err}
	switch kindOf(err) {
	case kindOutage:
		e.Class = waybill.ClassOutage
	case kindRetry:
		e.Class, e.Err = waybill.ClassOutage, fmt.Errorf("%w: %w", waybill.ErrRetryTx, err)
	case kindMisconfigured:
		e.Class, e.Err = waybill.ClassOutage, fmt.Errorf("%w: %w: run Migrate, or correct the grants, the data source name and the server's settings (README, Settings)", waybill.ErrMisconfigured, err)
	case kindTooBig:
		e.Class, e.Reason = waybill.ClassPermanent, waybill.ReasonTooLarge
		if number(err) == packetTooLarge || errors.Is(err, mysql.ErrPktTooLarge) {
			e.Err = fmt.Errorf("%w: a message is larger than the server's max_allowed_packet, or the driver's maxAllowedPacket: raise it, or lower Limits.MaxMessageBytes", err)
		}
	case kindUnknown:
		if number(err) == duplicateEntry {
			e.Class = waybill.ClassRejected
		}
	}
	return e
}

// misconfigured returns an error that a person must fix.
func misconfigured(format string, a ...any) error {
	return &waybill.Error{
		Op: "waybill/mysql: check", Class: waybill.ClassOutage,
		Err: fmt.Errorf("%w: %s", waybill.ErrMisconfigured, fmt.Sprintf(format, a...)),
	}
}
