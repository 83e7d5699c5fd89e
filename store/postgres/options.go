package postgres

import (
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// Defaults of the names.
const (
	DefaultSchema      = schema.DefaultSchema
	DefaultOutboxTable = schema.DefaultOutbox
	DefaultInboxTable  = schema.DefaultInbox
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
	// RouteTTL is TTL for the messages on a route, instead of it; negative = none. The lanes and sub-routes of a
	// route have its time.
	RouteTTL map[string]time.Duration
	// Cancellable are routes. A caller can cancel every message on them although it is due; see waybill.Message.
	Cancellable []string
	// Retention says how long settled records are kept. Published ones are deleted by the settle itself unless it
	// says otherwise; the rest of it is [Outbox.Clean]'s. All programs that share the table should say the same.
	Retention waybill.Retention
	// Clock gives the HLC stamps. Everything in one process should share one; nil means one of its own.
	Clock *hlc.Clock
	// Now is the producer's clock; nil means time.Now. It never decides what is due: the database's does.
	Now func() time.Time
	// DisableNotify turns LISTEN and NOTIFY off: relays then find new messages by polling every 500 ms.
	DisableNotify bool
	// AutoMigrate makes the first use create or upgrade the tables, for development. In production migrate on
	// purpose: it needs the right to create tables.
	AutoMigrate bool
	// Logger gets rare events, such as LISTEN lost; nil means slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the stage spans; nil means the global one.
	TracerProvider core.TracerProvider
}

// Validate reports all problems of o at once, as an error that matches waybill.ErrInvalid.
func (o Options) Validate() error {
	_, err := o.stamper()
	return err
}

// stamper returns the stamper that o asks for, or all problems of o.
func (o *Options) stamper() (*core.Stamper, error) {
	s, err := core.NewStamper(core.StamperOptions{
		Source: o.Source, Clock: o.Clock, Limits: o.Limits, TTL: o.TTL, RouteTTL: o.RouteTTL, Now: o.Now, TracerProvider: o.TracerProvider,
		Cancellable: o.Cancellable,
	})
	p := schema.CheckNames(o.Schema, "Table", o.Table)
	if invalid, ok := err.(*waybill.InvalidError); ok { //nolint:errorlint // NewStamper returns it unwrapped
		p = append(invalid.Problems, p...)
	} else if err != nil {
		return nil, err
	}
	if err := waybill.Invalid("waybill/postgres: outbox options", p...); err != nil {
		return nil, err
	}
	return s, nil
}

func (o *Options) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.Default()
	}
	return o.Logger
}
