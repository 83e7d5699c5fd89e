package postgres

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// Defaults of the names.
const (
	DefaultSchema      = "waybill"
	DefaultOutboxTable = "waybill_outbox"
	DefaultInboxTable  = "waybill_inbox"

	metaTable = "waybill_meta"
	// maxTableName leaves room for the suffixes of index names within Postgres' 63 bytes.
	maxTableName = 48
)

// Options configures an outbox. The zero value of each field is the documented default.
type Options struct {
	// Source is the CloudEvents source of messages that name none, such as "/orders". Required.
	Source string
	// Schema and Table name the outbox table; default "waybill" and "waybill_outbox". The names of its other tables
	// begin with Table. Two outboxes in one database that differ in either do not meet. Names are quoted: any
	// characters but NUL and {, case counts; Table has at most 48 bytes.
	Schema, Table string
	// Limits bounds what can be staged.
	Limits waybill.Limits
	// TTL is the total time of messages that set neither TTL nor Expires; 0 = none.
	TTL time.Duration
	// Withdrawable are routes. A caller can cancel every message on them although it is due; see waybill.Message.
	Withdrawable []string
	// Retention says how long settled records are kept. Published ones are deleted by the settle itself unless it says
	// otherwise; the rest of it is [Outbox.Clean]'s. All programs that share the table should say the same.
	Retention waybill.Retention
	// Clock gives the HLC stamps. Everything in one process should share one; nil means one of its own.
	Clock *hlc.Clock
	// Now is the producer's clock; nil means time.Now. It never decides what is due: the database's does.
	Now func() time.Time
	// DisableNotify turns LISTEN and NOTIFY off: relays then find new messages by polling every 500 ms.
	DisableNotify bool
	// AutoMigrate makes the first use create or upgrade the tables, for development. In production migrate on purpose:
	// it needs the right to create tables.
	AutoMigrate bool
	// Logger gets rare events, such as LISTEN lost; nil means slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the stage spans; nil means the global one.
	TracerProvider core.TracerProvider
}

// Validate reports all problems of o at once, as an error that matches waybill.ErrInvalid.
func (o Options) Validate() error {
	_, err := o.stamper()
	p := checkNames(o.Schema, "Table", o.Table)
	if invalid, ok := err.(*waybill.InvalidError); ok { //nolint:errorlint // NewStamper returns it unwrapped
		p = append(invalid.Problems, p...)
	} else if err != nil {
		return err
	}
	return waybill.Invalid("waybill/postgres: outbox options", p...)
}

func (o *Options) stamper() (*core.Stamper, error) {
	return core.NewStamper(core.StamperOptions{
		Source: o.Source, Clock: o.Clock, Limits: o.Limits, TTL: o.TTL, Now: o.Now, TracerProvider: o.TracerProvider,
		Withdrawable: o.Withdrawable,
	})
}

func (o *Options) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.Default()
	}
	return o.Logger
}

func checkNames(schema, field, table string) []string {
	var p []string
	if len(schema) > 63 {
		p = append(p, fmt.Sprintf("Schema: has %d bytes; at most 63 are allowed", len(schema)))
	}
	if strings.ContainsAny(schema, "\x00{") {
		p = append(p, "Schema: holds a NUL or {")
	}
	if len(table) > maxTableName {
		p = append(p, fmt.Sprintf("%s: has %d bytes; at most %d are allowed, since index names add to it", field, len(table), maxTableName))
	}
	if strings.ContainsAny(table, "\x00{") {
		p = append(p, field+": holds a NUL or {")
	}
	if table == metaTable {
		p = append(p, field+": "+metaTable+" is taken; choose another")
	}
	return p
}
