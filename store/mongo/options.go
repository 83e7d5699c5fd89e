package mongo

import (
	"cmp"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/check"
)

// Defaults of Options.
const (
	DefaultPrefix       = "waybill_"
	DefaultPollInterval = 250 * time.Millisecond
)

// Options configures a Store. The zero value of every field but Source is its default.
type Options struct {
	// Source is the CloudEvents source of messages that name none, such as "/orders". Required.
	Source string
	// Prefix begins the names of the collections; default "waybill_". Stores with different prefixes in one
	// database are separate. Letters, digits and underscores, not beginning with a digit, at most 40.
	Prefix string
	// AutoMigrate makes Check, or else the first use, create the collections and their indexes. Off by default.
	AutoMigrate bool
	// PollInterval is how often a sleeping relay looks for messages where there are no change streams; default
	// 250 ms, at least 1 ms.
	PollInterval time.Duration
	// DisableChangeStreams makes a sleeping relay poll although the server may have change streams.
	DisableChangeStreams bool
	// Retention says how long settled records are kept. By default the settle itself deletes published ones;
	// [Store.Clean] deletes all others. All programs that share the database should use the same value.
	Retention waybill.Retention
	// Cancellable lists routes. Every message on them can be cancelled although it is due; see waybill.Message.
	Cancellable []string
	// Clock gives the HLC stamps; nil means a clock of its own.
	Clock *hlc.Clock
	// Limits bounds what can be staged.
	Limits waybill.Limits
	// TTL is the total time of messages that set neither TTL nor Expires; 0 = none.
	TTL time.Duration
	// RouteTTL is TTL for the messages on a route, instead of it; negative = none. The lanes and sub-routes of a
	// route have its time.
	RouteTTL map[string]time.Duration
	// Now is the producer's clock; nil means time.Now. Due times and ages are by the server's clock.
	Now func() time.Time
	// Logger gets rare events, such as change streams that are missing; nil means slog.Default().
	Logger *slog.Logger
	// TracerProvider makes the stage spans; nil means the global one.
	TracerProvider core.TracerProvider
}

var prefixPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)

// Validate reports all problems of o as one error that matches waybill.ErrInvalid.
func (o Options) Validate() error {
	var p []string
	if o.Source == "" {
		p = append(p, "Source: is empty; name the producing service, such as \"/orders\"")
	} else if s := check.Source(o.Source); s != "" {
		p = append(p, "Source: "+s)
	}
	if o.Prefix != "" && !prefixPattern.MatchString(o.Prefix) {
		p = append(p, fmt.Sprintf("Prefix: %q is not a name of letters, digits and underscores, at most 40", o.Prefix))
	}
	if o.PollInterval != 0 && (o.PollInterval < time.Millisecond || o.PollInterval > time.Minute) {
		p = append(p, fmt.Sprintf("PollInterval: %s is not between 1ms and 1m", o.PollInterval))
	}
	p = append(p, check.TTL(o.TTL, o.RouteTTL)...)
	p = append(p, o.Limits.Validate("Limits")...)
	return waybill.Invalid("waybill/mongo: options", p...)
}

func (o Options) withDefaults() Options {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	o.PollInterval = cmp.Or(o.PollInterval, DefaultPollInterval)
	return o
}
