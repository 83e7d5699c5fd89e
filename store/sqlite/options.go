package sqlite

import (
	"cmp"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/check"
)

// Defaults of Options.
const (
	DefaultPrefix       = "waybill_"
	DefaultBusyTimeout  = 5 * time.Second
	DefaultPollInterval = 5 * time.Millisecond
)

// Options configures a Store. The zero value of every field but Source is its default.
type Options struct {
	// Source is the CloudEvents source of messages that name none, such as "/orders". Required.
	Source string
	// Prefix begins the names of tables and indexes; default "waybill_". Stores with different prefixes in one file
	// are separate. Letters, digits and underscores, not beginning with a digit, at most 40.
	Prefix string
	// AutoMigrate makes Open (with New: the first use) create or upgrade the tables. Off by default.
	AutoMigrate bool
	// BusyTimeout is how long to wait for another writer before reporting an outage; default 5 s, at least 10 ms.
	// With New it bounds the wait within the process only: set busy_timeout in the data source name as well.
	BusyTimeout time.Duration
	// PollInterval is how often a sleeping relay checks whether another connection has committed; default 5 ms, at
	// least 1 ms. When nothing was committed for a second it checks a quarter as often.
	PollInterval time.Duration
	// Retention says how long settled records are kept. By default the settle itself deletes published ones;
	// [Store.Clean] deletes all others. All programs that share the file should use the same value.
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
	// Now is the clock of the store and of the producer; nil means time.Now. It must be safe for concurrent use.
	// Wait uses real timers in any case.
	Now func() time.Time
	// Logger gets rare events, such as tables that were created; nil means slog.Default().
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
	p = append(p, checkPrefix(o.Prefix)...)
	if o.BusyTimeout != 0 && (o.BusyTimeout < 10*time.Millisecond || o.BusyTimeout > time.Hour) {
		p = append(p, fmt.Sprintf("BusyTimeout: %s is not between 10ms and 1h", o.BusyTimeout))
	}
	if o.PollInterval != 0 && (o.PollInterval < time.Millisecond || o.PollInterval > time.Minute) {
		p = append(p, fmt.Sprintf("PollInterval: %s is not between 1ms and 1m", o.PollInterval))
	}
	p = append(p, check.TTL(o.TTL, o.RouteTTL)...)
	p = append(p, o.Limits.Validate("Limits")...)
	return waybill.Invalid("waybill/sqlite: options", p...)
}

func checkPrefix(prefix string) []string {
	if prefix == "" || prefixPattern.MatchString(prefix) && !strings.HasPrefix(strings.ToLower(prefix), "sqlite_") {
		return nil
	}
	return []string{fmt.Sprintf("Prefix: %q is not a name of letters, digits and underscores, at most 40, "+
		"or begins with sqlite_", prefix)}
}

func (o Options) withDefaults() Options {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	o.BusyTimeout = cmp.Or(o.BusyTimeout, DefaultBusyTimeout)
	o.PollInterval = cmp.Or(o.PollInterval, DefaultPollInterval)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}
