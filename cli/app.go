package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/cli/config"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxes"
)

// App is the command over a list of adapters. A program with adapters of its own is a main of ten lines; see the
// example.
type App struct {
	// Version is what the version command shows; empty means that of the module, as the Go command recorded it.
	Version string
	// Stores and Transports are the kinds that a configuration can name.
	Stores     []StoreKind
	Transports []TransportKind
}

// Main runs the command with the arguments of the process and ends it with the command's exit code. SIGINT and SIGTERM
// stop it in order; a second one ends it at once.
func (a App) Main() {
	ctx, stop := context.WithCancel(context.Background()) //nolint:forbidigo // the root of the process
	signals := make(chan os.Signal, 2)                    // both: none is lost while the first one is handled
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(exitSignal) //nolint:forbidigo // at once
	}()
	code := a.Run(ctx, os.Args[1:], IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ()})
	stop()
	os.Exit(code) //nolint:forbidigo // the end of the process
}

// exitSignal is the exit code after a second signal, as shells count it for SIGTERM.
const exitSignal = 128 + int(syscall.SIGTERM)

// IO is the outside of a command.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
	// Environ are environment variables as NAME=value.
	Environ []string
}

// Env is what adapters share with the command.
type Env struct {
	// Logger gets the adapter's log.
	Logger *slog.Logger
	// MeterProvider and TracerProvider make its telemetry; they are never nil.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	// Passive says that the command only looks: nothing may be made at the server.
	Passive bool
}

// StoreKind is a kind of database. Make one with NewStoreKind.
type StoreKind struct {
	name     string
	settings func() any
	open     func(context.Context, any, Env) (*Store, error)
}

// NewStoreKind returns a kind of database. S is a struct with its settings; see package config for which keys it gets.
// The settings are a copy for open. open does not wait for the database: one that is down is an outage of the first
// call. An error names the setting by its key.
func NewStoreKind[S any](name string, open func(ctx context.Context, settings *S, env Env) (*Store, error)) StoreKind {
	return StoreKind{
		name: name, settings: func() any { return new(S) },
		open: func(ctx context.Context, settings any, env Env) (*Store, error) { return open(ctx, settings.(*S), env) },
	}
}

// Store is an open database. Commands find its optional interfaces with core.As in Outbox and in Inbox.
type Store struct {
	// Outbox is the store. It is closed by Close only.
	Outbox core.OutboxStore
	// Outboxes are many outboxes, which a relay of the configuration serves as a fleet, instead of Outbox. Outbox
	// is nil then if the settings do not choose one of them for the other commands.
	Outboxes outboxes.All
	// Inbox is the inbox for core.InboxPurger, core.Checker and such; nil = there is none.
	Inbox any
	// Schema manages the tables; nil = the adapter has none to manage.
	Schema Schema
	// Producer stages and cancels; nil = cancel by id and bench cannot be used.
	Producer Producer
	// Mark makes a handler of a topic that only marks what it handles in the inbox under a consumer's name, for
	// bench; nil = there is no such thing. Make it with NewMark.
	Mark func(consumer, topic string) (waybill.Handler, error)
	// Close closes everything. It must end with its context.
	Close func(context.Context) error
}

// Schema manages the schema of a store.
type Schema interface {
	// Up brings it to the newest version, under a lock, idempotently. Down goes back to a version; 0 drops
	// everything that is Waybill's.
	Up(ctx context.Context) error
	Down(ctx context.Context, version int) error
	// Losses returns the tables with messages or marks that Down to version would drop.
	Losses(ctx context.Context, version int) ([]admin.Loss, error)
	// Status returns the versions, a line for each part.
	Status(ctx context.Context) ([]SchemaStatus, error)
	// Print returns what Up runs on an empty database, as text for people and tools.
	Print() (string, error)
	// Drift compares the schema with the one that the adapter needs.
	Drift(ctx context.Context) ([]admin.Difference, error)
}

// Partial is a Schema that can manage its outbox or its inbox alone.
type Partial interface {
	// Only returns the schema of part, which is "outbox" or "inbox".
	Only(part string) (Schema, error)
}

// Granter is a Schema of a database with roles.
type Granter interface {
	// Grants returns the statements that give each role what it needs and no more.
	Grants(r Roles) string
}

// Roles names the roles of a database by what their programs do; an empty one is left out.
type Roles struct {
	Producer  string // stages
	Canceller string // stages, cancels and replaces
	Relay     string // reads and settles
	Consumer  string // marks in the inbox
	Operator  string // inspects, redrives, purges

	// Routes and Sources bind what Producer and Canceller stage and cancel; empty = all.
	Routes, Sources []string
}

// SchemaStatus is the version of one part of a schema.
type SchemaStatus struct {
	Part    string `json:"part"`
	Applied int    `json:"applied"`
	Newest  int    `json:"newest"`
}

// TransportKind is a kind of broker. Make one with NewTransportKind.
type TransportKind struct {
	name     string
	settings func() any
	open     func(context.Context, any, Env) (*Transport, error)
}

// NewTransportKind returns a kind of broker; see NewStoreKind.
func NewTransportKind[S any](name string, open func(ctx context.Context, settings *S, env Env) (*Transport, error)) TransportKind {
	return TransportKind{
		name: name, settings: func() any { return new(S) },
		open: func(ctx context.Context, settings any, env Env) (*Transport, error) {
			return open(ctx, settings.(*S), env)
		},
	}
}

// Transport is an open broker. Commands find its optional interfaces with core.As in Publisher.
type Transport struct {
	Publisher core.Publisher
	// Topology manages what the broker must hold; nil = nothing to manage.
	Topology Topology
	// Sink makes a place at the broker for the messages of a topic, whose size is bounded, and returns a function
	// that removes it, for bench; nil = the broker has no such place.
	Sink func(ctx context.Context, topic string) (remove func(context.Context) error, err error)
	// Drop deletes the queues that a consumer made for a subscription, with all that is in them, for bench; nil =
	// bench has no consumers here. A missing queue is no error.
	Drop func(ctx context.Context, sub core.Subscription) error
	// Close closes everything. It must end with its context.
	Close func(context.Context) error
}

// BrokerUsers names the users of a broker by the roles of their programs; an empty one is left out. One user may have
// several roles.
type BrokerUsers struct{ Relay, Consumer, Operator string }

// Topology manages exchanges, queues and bindings for a set of subscriptions.
type Topology interface {
	// Print returns the needed objects, as text for people.
	Print(subs []core.Subscription) (string, error)
	// Export returns it in a format, one of Formats, with the permissions of users.
	Export(subs []core.Subscription, format string, users BrokerUsers) (string, error)
	Formats() []string
	// Declare makes what is missing.
	Declare(ctx context.Context, subs []core.Subscription) error
	// Verify compares it with the broker. It returns an [UnverifiableError] if an optional setting is missing that
	// it needs.
	Verify(ctx context.Context, subs []core.Subscription) ([]admin.Difference, error)
	// Unused returns the objects that have the transport's names and belong to no subscription. Delete deletes one
	// of them if it is empty and has no consumer; otherwise the error matches waybill.ErrInFlight.
	Unused(ctx context.Context, subs []core.Subscription) ([]string, error)
	Delete(ctx context.Context, subs []core.Subscription, object string) error
}

// UnverifiableError says that a Topology cannot be compared with the broker, since an optional setting is missing.
type UnverifiableError struct {
	Cause string // the setting, and what it is for
}

func (e *UnverifiableError) Error() string { return "waybill: topology: " + e.Cause }

// Unwrap makes it an error of the settings.
func (e *UnverifiableError) Unwrap() error { return waybill.Invalid("waybill: settings", e.Cause) }

// Binder is what a Topology can be besides, so that validate finds topics whose messages cannot be routed.
type Binder interface {
	// Unbound returns the topics without a binding.
	Unbound(ctx context.Context, topics []string) ([]string, error)
}

// TLS are the settings of a client's connections. The zero value means the system's authorities and no client
// certificate.
type TLS struct {
	// CAFile holds the authorities to trust, in PEM, instead of the system's.
	CAFile string
	// CertFile and KeyFile are the client's certificate and key, in PEM. They are read for each new connection, so
	// a certificate that was renewed is used at the next one.
	CertFile, KeyFile string
	// ServerName is the name to expect in the server's certificate; empty means the host's.
	ServerName string
	// InsecureSkipVerify trusts every server. For tests only.
	InsecureSkipVerify bool
}

// IsZero reports whether nothing is set.
func (t TLS) IsZero() bool { return t == TLS{} }

// Config returns the settings as Go's; nil for the zero value. The error names the key.
func (t TLS) Config() (*tls.Config, error) {
	if t.IsZero() {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify} //nolint:gosec // asked for
	if t.CAFile != "" {
		pool, err := certificates(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls.ca_file: %w", err)
		}
		c.RootCAs = pool
	}
	if (t.CertFile == "") != (t.KeyFile == "") {
		return nil, errors.New("tls.cert_file and tls.key_file: give both or none")
	}
	if t.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile); err != nil {
			return nil, fmt.Errorf("tls.cert_file: %w", err)
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
			return &pair, err
		}
	}
	return c, nil
}

// Secret is a setting that is never shown; see [config.Secret].
type Secret = config.Secret
