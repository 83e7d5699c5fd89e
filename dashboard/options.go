package dashboard

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/core"
)

// Options configures a Dashboard.
type Options struct {
	// Path is where the page is mounted, such as "/waybill"; empty = the root.
	Path string
	// Title stands at the top; default "Waybill".
	Title string
	// Outboxes and Queues are what can be seen. Names must differ.
	Outboxes []Outbox
	Queues   []Queue
	// Metrics gives the rates and latencies of this process: a reader of its own, given to the MeterProvider of the
	// relays and consumers. Nil = no charts.
	Metrics *sdkmetric.ManualReader
	// ReadOnly takes all actions away, from users with each right.
	ReadOnly bool
	// ShowBodies shows bodies of messages. Mask, if not nil, returns the part of a body that may be shown.
	ShowBodies bool
	Mask       func(e *waybill.Envelope) []byte
	// Hosts are the names by which browsers ask for the page, such as ops.example, or ops.example:8443 for one port
	// only. A request for another name is refused, even with a password or token. Empty = localhost and addresses;
	// "*" = every name.
	Hosts []string
	// Users may come in, by name. Without any one comes in with the token of Dashboard.SignInURL, unless Open or
	// Proxy.UserHeader is set.
	Users map[string]User
	// Right is that of everybody else who comes in. Default: RightEdit for the holder of the token, RightLook for
	// those whom Open or the proxy lets in.
	Right Right
	// Proxy says from where a reverse proxy comes, and in which header it names users.
	Proxy Proxy
	// Open admits every client that reaches the page, such as on a network of its own.
	Open bool
	// Audit keeps the record of acts on Queues; nil = the first of Outboxes that keeps one. Acts on an outbox are
	// in its own record. An act whose begin cannot be recorded is not done.
	Audit audit.Recorder
	// Logger gets a line at the begin and at the end of each action; nil means slog.Default().
	Logger *slog.Logger
}

// Outbox is a store, with the relay of this process that serves it; nil = there is none here.
type Outbox struct {
	Name  string
	Store core.OutboxStore
	Relay Relay
	// Blocking are the routes whose relays have BlockAfterAbandon: there an abandoned message blocks its key.
	Blocking []string
}

// blocks reports whether abandoned messages block their keys on a route.
func (b *Outbox) blocks(route string) bool {
	return slices.Contains(b.Blocking, waybill.BaseRoute(route))
}

// Relay is what the dashboard asks of a relay.
type Relay interface {
	// HealthWith says how the relay is, with the counts of c, which is nil if the store does not count.
	HealthWith(ctx context.Context, c admin.Counter) waybill.Health
	Pause(route string) error
	Resume(route string) error
}

// Queue is a queue whose parked messages are shown.
type Queue struct {
	Name   string
	Parked admin.ParkedQueue
}

func (o *Options) validate() error {
	var p []string
	if o.Path != "" && (!strings.HasPrefix(o.Path, "/") || strings.HasSuffix(o.Path, "/")) {
		p = append(p, fmt.Sprintf("Path: %q must begin with a slash and end without one", o.Path))
	}
	if len(o.Outboxes)+len(o.Queues) == 0 {
		p = append(p, "Outboxes: is empty, and so is Queues: name what there is to see")
	}
	seen := map[string]bool{}
	for i, b := range o.Outboxes {
		if b.Name == "" || seen[b.Name] {
			p = append(p, fmt.Sprintf("Outboxes[%d].Name: %q is empty or listed twice", i, b.Name))
		}
		seen[b.Name] = true
		if b.Store == nil {
			p = append(p, fmt.Sprintf("Outboxes[%d].Store: is nil", i))
		}
	}
	seen = map[string]bool{}
	for i, q := range o.Queues {
		if q.Name == "" || seen[q.Name] {
			p = append(p, fmt.Sprintf("Queues[%d].Name: %q is empty or listed twice", i, q.Name))
		}
		seen[q.Name] = true
		if q.Parked == nil {
			p = append(p, fmt.Sprintf("Queues[%d].Parked: is nil", i))
		}
	}
	for i, h := range o.Hosts {
		if h == "" || strings.ContainsAny(h, "/@ ") {
			p = append(p, fmt.Sprintf("Hosts[%d]: %q is no name of a host: write it as ops.example or ops.example:8443", i, h))
		}
	}
	p = append(p, o.problemsOfRights()...)
	return waybill.Invalid("waybill/dashboard: options", p...)
}
