package cli

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli/config"
	"github.com/waybill-go/waybill/relay"
)

// settings are the keys of a configuration.
type settings struct {
	Log           logSettings                `doc:"the log, which goes to standard error"`
	HTTP          httpSettings               `doc:"health and metrics over HTTP"`
	Audit         auditSettings              `doc:"the audit record of acts on the queues of brokers"`
	Dashboard     dashboardSettings          `doc:"the dashboard at /dashboard/"`
	Telemetry     telemetrySettings          `doc:"where metrics and traces go"`
	Stores        map[string]config.Section  `doc:"the databases, by names of your choice"`
	Transports    map[string]config.Section  `doc:"the brokers, by names of your choice"`
	RetryPolicies map[string]waybill.Backoff `doc:"retry policies, by names of your choice: backoff of a route, and retry and in_process of a subscription, can be such a name"`
	Relays        map[string]relaySettings   `doc:"what waybill relay runs, by names of your choice"`
	Subscriptions []subscriptionSettings     `doc:"what consumers subscribe to, for topology, dlq and validate"`
}

type logSettings struct {
	Level  string `doc:"debug, info, warn or error; default info"`
	Format string `doc:"text or json; default text"`
}

type httpSettings struct {
	Listen string    `doc:"address of health and metrics, such as 127.0.0.1:9464; empty = off"`
	TLS    serverTLS `doc:"certificate of the listener; empty = plain HTTP"`
}

type auditSettings struct {
	Store string `doc:"name in stores; the only one if empty. With several and no name there is no record of such acts"`
}

type dashboardSettings struct {
	Enabled    bool                     `doc:"whether it is there; needs http.listen"`
	ReadOnly   bool                     `doc:"without actions, whatever the rights are"`
	ShowBodies bool                     `doc:"shows bodies of messages"`
	Hosts      []string                 `doc:"names by which browsers ask for it, such as ops.example; default localhost and addresses; * = every name"`
	Open       bool                     `doc:"lets everybody in who reaches it"`
	Users      map[string]dashboardUser `doc:"who may come in, by name; without any, the address in the log at the start is the way in"`
	Right      string                   `doc:"right of everybody else who comes in: look, act or edit; default edit for the holder of the token, otherwise look"`
	Proxy      dashboardProxy           `doc:"a proxy before it that asks who people are"`
}

type dashboardUser struct {
	Password Secret `doc:"bcrypt hash of the password; empty = comes through the proxy only"`
	Right    string `doc:"look, act or edit, each with those before it; default look"`
}

type dashboardProxy struct {
	From       []string `doc:"addresses or networks of the proxies, such as 10.0.0.7 or 10.1.0.0/16"`
	UserHeader string   `doc:"header in which they name the user, such as X-Forwarded-User"`
	TLS        bool     `doc:"browsers ask them by HTTPS: cookies are for HTTPS only"`
}

type serverTLS struct {
	CertFile string `doc:"certificate in PEM; read for each connection"`
	KeyFile  string `doc:"its key in PEM"`
}

type telemetrySettings struct {
	Prometheus *bool        `doc:"metrics at /metrics; default true"`
	OTLP       otlpSettings `doc:"an OTLP receiver for metrics and traces"`
}

type otlpSettings struct {
	Endpoint string        `doc:"URL of an OTLP receiver, such as http://127.0.0.1:4318 or grpc://127.0.0.1:4317; empty = off"`
	Headers  Secret        `doc:"headers of each request as name=value, divided by commas"`
	Interval time.Duration `doc:"how often metrics are sent; default 1m"`
	Sample   *float64      `doc:"share of the traces that begin here; default 1"`
	TLS      TLS           `doc:"certificates for https and grpcs"`
}

// relaySettings are one relay: one store, its routes and their transports.
type relaySettings struct {
	Store     string `doc:"name in stores; the only one if empty"`
	Transport string `doc:"name in transports for routes that name none; the only one if empty"`
	relay.Options
	Fleet  relay.FleetOptions `doc:"for a store of many outboxes, such as one with schemas"`
	Routes []routeSettings    `doc:"the routes to serve; default the one route default"`
}

type routeSettings struct {
	Transport string          `doc:"name in transports; that of the relay if empty"`
	Paused    bool            `doc:"true = messages wait; can change while the relay runs"`
	Compress  bool            `doc:"compresses bodies with gzip; consumers need the step Gzip of package transform"`
	Encrypt   encryptSettings `doc:"encrypts bodies; consumers need the step Encrypt of package transform"`
	Sign      signSettings    `doc:"signs messages; consumers need the step Sign of package transform"`
	relay.Route
}

// subscriptionSettings are what topology, dlq and validate know of a subscription.
type subscriptionSettings struct {
	Transport string `doc:"name in transports; the only one if empty"`
	waybill.Subscription
}

// reserved are variables that hold no settings.
var reserved = []string{"WAYBILL_CONFIG", "WAYBILL_TEST_"}

// loaded is a configuration that was read, and checked as far as one can without a connection.
type loaded struct {
	settings
	from       *config.Loaded
	stores     map[string]any // settings of the kind
	transports map[string]any
	problems   []string
}

// load reads the configuration of all sources. The error is an [*waybill.InvalidError] with all problems.
func (a *App) load(src config.Sources) (*loaded, error) {
	from, err := config.Load(src)
	if from == nil {
		return nil, err
	}
	l := &loaded{from: from, stores: map[string]any{}, transports: map[string]any{}}
	l.take(err)
	l.take(from.Decode(&l.settings))
	l.Stores, l.Transports = dropNil(l.Stores), dropNil(l.Transports)
	for name, s := range l.Stores {
		l.stores[name] = kindOf(l, s, names(a.Stores, func(k StoreKind) string { return k.name }), func(i int) any { return a.Stores[i].settings() })
	}
	for name, s := range l.Transports {
		l.transports[name] = kindOf(l, s, names(a.Transports, func(k TransportKind) string { return k.name }), func(i int) any { return a.Transports[i].settings() })
	}
	l.check()
	slices.Sort(l.problems)
	return l, waybill.Invalid("waybill: configuration", l.problems...)
}

func dropNil(m map[string]config.Section) map[string]config.Section {
	for name, s := range m {
		if s.IsZero() {
			delete(m, name)
		}
	}
	return m
}

func names[T any](kinds []T, name func(T) string) []string {
	out := make([]string, len(kinds))
	for i := range kinds {
		out[i] = name(kinds[i])
	}
	return out
}

// kindOf decodes a section by its key kind; nil if that is wrong.
func kindOf(l *loaded, s config.Section, kinds []string, settings func(i int) any) any {
	kind := s.Text("kind")
	i := slices.Index(kinds, kind)
	if i < 0 {
		l.bad(s.Path()+".kind", "%q is unknown: this program has %s", kind, strings.Join(kinds, ", "))
		return nil
	}
	out := settings(i)
	l.take(s.Decode(out, "kind"))
	return out
}

func (l *loaded) bad(path, format string, a ...any) {
	l.problems = append(l.problems, l.from.Problem(path, format, a...))
}

// take notes the problems of a configuration error.
func (l *loaded) take(err error) {
	if e, ok := asInvalid(err); ok {
		l.problems = append(l.problems, e.Problems...)
	}
}

// check finds settings that contradict each other.
func (l *loaded) check() {
	if l.Log.Level != "" {
		if err := new(slog.LevelVar).UnmarshalText([]byte(l.Log.Level)); err != nil {
			l.bad("log.level", "%q is unknown: choose debug, info, warn or error", l.Log.Level)
		}
	}
	if f := l.Log.Format; f != "" && f != "text" && f != "json" {
		l.bad("log.format", "%q is unknown: choose text or json", f)
	}
	if l.HTTP.Listen != "" {
		if _, port, err := net.SplitHostPort(l.HTTP.Listen); err != nil || !isPort(port) {
			l.bad("http.listen", "%q is no address with a port, such as 127.0.0.1:9464 or :9464", l.HTTP.Listen)
		}
	}
	l.checkTelemetry()
	if (l.HTTP.TLS.CertFile == "") != (l.HTTP.TLS.KeyFile == "") {
		l.bad("http.tls", "give cert_file and key_file, or none")
	}
	if l.Dashboard.Enabled && l.HTTP.Listen == "" {
		l.bad("dashboard.enabled", "needs an address: set http.listen")
	}
	if name := l.Audit.Store; name != "" {
		l.pick("audit.store", name, l.stores, "store")
	}
	for _, name := range sortedKeys(l.RetryPolicies) {
		policy := l.RetryPolicies[name]
		for _, p := range policy.Validate("") {
			path, text := relayProblem(p)
			l.bad(config.PolicyKey+"."+name+path, "%s", text)
		}
	}
	owners := map[string]string{}
	for _, name := range sortedKeys(l.Relays) {
		l.checkRelay(name, owners)
	}
	queues := map[string]bool{}
	for i := range l.Subscriptions {
		s, at := &l.Subscriptions[i], fmt.Sprintf("subscriptions[%d]", i)
		l.pick(at+".transport", s.Transport, l.transports, "transport")
		if s.Queue == "" {
			l.bad(at+".queue", "is missing")
		}
		if queues[s.Transport+"/"+s.Queue] {
			l.bad(at+".queue", "%q is listed twice", s.Queue)
		}
		queues[s.Transport+"/"+s.Queue] = true
	}
}

// isPort reports whether text is the number of a port, or the name of one.
func isPort(text string) bool {
	n, err := strconv.Atoi(text)
	return text != "" && (err != nil || n >= 0 && n < 1<<16)
}

// checkRelay checks one relay. owners has who serves a route of a store already.
func (l *loaded) checkRelay(name string, owners map[string]string) {
	r, at := l.Relays[name], "relays."+name
	store := l.pick(at+".store", r.Store, l.stores, "store")
	opts := r.options()
	if e, ok := asInvalid(opts.Validate()); ok {
		for _, p := range e.Problems {
			path, text := relayProblem(p)
			l.bad(at+"."+path, "%s", text)
		}
	}
	routes := r.Routes
	if len(routes) == 0 {
		routes = []routeSettings{{}}
	}
	for i := range routes {
		transport := routes[i].Transport
		path := fmt.Sprintf("%s.routes[%d].transport", at, i)
		if transport == "" {
			transport, path = r.Transport, at+".transport"
		}
		l.pick(path, transport, l.transports, "transport")
		routes[i].Encrypt.check(func(key, text string) { l.bad(fmt.Sprintf("%s.routes[%d].encrypt.%s", at, i, key), "%s", text) })
		routes[i].Sign.check(func(key, text string) { l.bad(fmt.Sprintf("%s.routes[%d].sign.%s", at, i, key), "%s", text) })
		route := routes[i].Name
		route = cmp.Or(route, waybill.DefaultRoute)
		if other := owners[store+"/"+route]; other != "" && other != name && store != "" {
			l.bad(fmt.Sprintf("%s.routes[%d].name", at, i), "route %q of store %q is served by relay %q already: a route leads to one place", route, store, other)
		}
		owners[store+"/"+route] = name
	}
}

// pick returns the name of a store or transport: the given one, or the only one there is.
func (l *loaded) pick(path, name string, among map[string]any, what string) string {
	switch _, ok := among[name]; {
	case ok:
		return name
	case name == "" && len(among) == 1:
		return sortedKeys(among)[0]
	case name == "" && len(among) == 0:
		l.bad(path, "there is no %s: add one to %ss", what, what)
	case name == "":
		l.bad(path, "is missing: choose a %s of %s", what, strings.Join(sortedKeys(among), ", "))
	default:
		l.bad(path, "there is no %s %q: choose of %s", what, name, strings.Join(sortedKeys(among), ", "))
	}
	return ""
}

// options returns the relay's options, routes included, without publishers.
func (r *relaySettings) options() relay.Options {
	o := r.Options
	o.Routes = nil
	for i := range r.Routes {
		o.Routes = append(o.Routes, r.Routes[i].Route)
	}
	return o
}

// relayProblem splits a problem of Options into key and text: "Routes[0].Weight: is 0" is about routes[0].weight.
func relayProblem(p string) (path, text string) {
	field, text, ok := strings.Cut(p, ": ")
	if !ok || strings.ContainsAny(field, " \"") {
		return "", p
	}
	parts := strings.Split(field, ".")
	for i := range parts {
		name, index, _ := strings.Cut(parts[i], "[")
		if parts[i] = config.Key(name); index != "" {
			parts[i] += "[" + index
		}
	}
	return strings.Join(parts, "."), text
}
