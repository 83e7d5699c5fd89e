package redisstreams

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/enum"
)

// Confirm is the condition under which a message counts as published.
type Confirm uint8

// The kinds of confirm.
const (
	// ConfirmStored: the server has it in memory. A crash of the server can lose what its settings do not keep.
	ConfirmStored Confirm = iota
	// ConfirmAlways: the server syncs its append-only file before it answers. Check and Dial verify the settings
	// (appendonly yes, appendfsync always), for which the user needs CONFIG GET.
	ConfirmAlways
	// ConfirmReplicas: Options.Replicas replicas have it in memory, too (WAIT).
	ConfirmReplicas
	// ConfirmSynced: the server and Options.Replicas replicas have synced it to their append-only files (WAITAOF,
	// Redis 7.2).
	ConfirmSynced
)

// String returns the name of the kind.
func (c Confirm) String() string {
	return enum.Name("Confirm", c, 0, "stored", "always", "replicas", "synced")
}

// Options configures a transport. The zero value is ready for use. It is a value; changes after Dial or New have no
// effect.
type Options struct {
	// Bus is the name that all keys begin with, in braces, so that all of a bus are in one slot of a cluster;
	// default "waybill". Publishers and consumers use the same.
	Bus string
	// HoldFor is how long a receiver keeps a delivery that it does not renew; then another one gets it. The
	// consumer renews every third of it. All receivers of a queue use the same. The messages of a killed process
	// come after it and at most a fifth of it more, so a server that fails over for longer lets messages come
	// twice. Default 8 s, at least 100 ms.
	HoldFor time.Duration
	// Confirm is the condition under which a message counts as published; default ConfirmStored.
	Confirm Confirm
	// Replicas is how many replicas must have a message, with ConfirmReplicas (at least 1) and ConfirmSynced.
	Replicas int
	// MaxLen is how many messages a queue may have, those in work included, those that wait for a retry not. A
	// queue with more takes none from this publisher, and a replay stops: an outage of the topic. Default 0 = no
	// bound.
	MaxLen int
	// MaxMessageBytes bounds a message as Envelope.Size counts; a larger one is refused for good, as too large.
	// Default 16 MiB, at most 256 MiB. The server's proto-max-bulk-len and client-query-buffer-limit should be
	// larger: a message above them is refused, too.
	MaxMessageBytes int
	// Timeout bounds one question to the server, and one attempt to connect with Dial; default 5 s.
	Timeout time.Duration
	// PublishTimeout bounds a Publish whose context has no earlier deadline; default 30 s.
	PublishTimeout time.Duration
	// Lazy leaves it to the first use to connect, so that Dial returns at once. Then a server that is down at the
	// start is an outage as any other.
	Lazy bool
	// Passive makes no queue, group or binding: they must be there. So a user that may not make them will do.
	Passive bool
	// Credentials is asked for user and password before each connection is opened, in place of those of the URL, so
	// that a password that was changed works at the next connection. Its error may hold no secret. Default nil: the
	// URL's. Only for Dial.
	Credentials func(context.Context) (user, password string, err error)
	// TLS is the client's side of TLS for a rediss:// URL; nil means the system's authorities. Only for Dial.
	TLS *tls.Config
	// Logger gets the log; nil means slog.Default.
	Logger *slog.Logger
}

// The defaults and bounds of Options.
const (
	DefaultBus             = "waybill"
	DefaultHoldFor         = 8 * time.Second
	DefaultMaxMessageBytes = 16 << 20
	DefaultTimeout         = 5 * time.Second
	DefaultPublishTimeout  = 30 * time.Second
	maxMaxMessageBytes     = 256 << 20
	minHoldFor             = 100 * time.Millisecond
)

// exampleURL is what errors show instead of the URL, which holds a password.
const exampleURL = "redis://user:password@host:6379/0" //nolint:gosec // an example, no credentials

func (o Options) withDefaults() Options {
	o.Bus = cmp.Or(o.Bus, DefaultBus)
	o.HoldFor = cmp.Or(o.HoldFor, DefaultHoldFor)
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, DefaultMaxMessageBytes)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.PublishTimeout = cmp.Or(o.PublishTimeout, DefaultPublishTimeout)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o
}

// Validate returns an error that lists all problems of o, or nil.
func (o Options) Validate() error {
	o = o.withDefaults()
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	if s := check.Name(o.Bus); s != "" {
		bad("Bus: %s", s)
	} else if strings.ContainsAny(o.Bus, "{}") {
		bad("Bus: %q holds a brace, which would split its keys over a cluster; leave it out", check.Clip(o.Bus, 80))
	}
	if o.HoldFor < minHoldFor {
		bad("HoldFor: %s is less than %s; leave it 0 for %s", o.HoldFor, minHoldFor, DefaultHoldFor)
	}
	if o.Confirm > ConfirmSynced {
		bad("Confirm: %s is unknown; leave it 0 for ConfirmStored", o.Confirm)
	}
	switch {
	case o.Replicas < 0:
		bad("Replicas: %d is negative; leave it 0 for none", o.Replicas)
	case o.Replicas == 0 && o.Confirm == ConfirmReplicas:
		bad("Replicas: is 0, so ConfirmReplicas would wait for none; set it to 1 or more")
	case o.Replicas > 0 && o.Confirm != ConfirmReplicas && o.Confirm != ConfirmSynced:
		bad("Replicas: has no effect with Confirm %s; set ConfirmReplicas or ConfirmSynced, or leave it 0", o.Confirm)
	}
	if o.MaxLen < 0 {
		bad("MaxLen: %d is negative; leave it 0 for no bound", o.MaxLen)
	}
	if o.MaxMessageBytes < 1 || o.MaxMessageBytes > maxMaxMessageBytes {
		bad("MaxMessageBytes: %d is not between 1 and %d; leave it 0 for %d", o.MaxMessageBytes, maxMaxMessageBytes, DefaultMaxMessageBytes)
	}
	for name, d := range map[string]time.Duration{"Timeout": o.Timeout, "PublishTimeout": o.PublishTimeout} {
		if d < 10*time.Millisecond {
			bad("%s: %s is less than 10ms; leave it 0 for the default", name, d)
		}
	}
	return waybill.Invalid("waybill/redisstreams: options", p...)
}
