package cli

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/relay"
)

// dashboardPath is where the daemon shows the dashboard.
const dashboardPath = "/dashboard"

// newPage returns the dashboard over the relays of the daemon, and the parked messages of the subscriptions; nil = off.
func (d *daemon) newPage(reader *sdkmetric.ManualReader) (*dashboard.Dashboard, error) {
	s := &d.conf.Dashboard
	if !s.Enabled {
		return nil, nil
	}
	opts := dashboard.Options{
		Path: dashboardPath, Metrics: reader, ReadOnly: s.ReadOnly, ShowBodies: s.ShowBodies, Open: s.Open, Hosts: s.Hosts,
		Right: dashboard.Right(s.Right), Proxy: dashboard.Proxy{From: s.Proxy.From, UserHeader: s.Proxy.UserHeader, TLS: s.Proxy.TLS}, Logger: d.log,
	}
	var err error
	if opts.Users, err = d.conf.users(); err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(d.fleet.stores) {
		if d.fleet.stores[name].Outboxes != nil {
			continue // the page is for one outbox
		}
		var serving together
		var blocking []string
		for _, r := range sortedKeys(d.fleet.relays) {
			if d.fleet.ends[r].store == name {
				serving = append(serving, d.fleet.relays[r].(*relay.Relay))
				for i := range d.fleet.options[r].Routes {
					if route := &d.fleet.options[r].Routes[i]; route.BlockAfterAbandon {
						blocking = append(blocking, cmp.Or(route.Name, waybill.DefaultRoute))
					}
				}
			}
		}
		opts.Outboxes = append(opts.Outboxes, dashboard.Outbox{Name: name, Store: d.fleet.stores[name].Outbox, Relay: serving, Blocking: blocking})
	}
	seen := map[string]bool{}
	for i := range d.conf.Subscriptions {
		sub := &d.conf.Subscriptions[i]
		t := d.fleet.transports[the(sub.Transport, d.conf.transports)]
		if t == nil || seen[sub.Queue] {
			continue
		}
		if parked, ok := core.As[admin.ParkedQueue](t.Publisher); ok {
			seen[sub.Queue] = true
			opts.Queues = append(opts.Queues, dashboard.Queue{Name: sub.Queue, Parked: parked})
		}
	}
	if s := d.fleet.stores[d.conf.Audit.Store]; s != nil && s.Outbox != nil {
		opts.Audit, _ = core.As[audit.Recorder](s.Outbox)
	}
	page, err := dashboard.New(opts)
	if err != nil {
		return nil, d.conf.opening("dashboard", err)
	}
	return page, nil
}

// users returns the users of the dashboard, with their passwords as they are now.
func (l *loaded) users() (map[string]dashboard.User, error) {
	out := map[string]dashboard.User{}
	for name, user := range l.Dashboard.Users {
		hash, err := user.Password.Value()
		if err != nil {
			return nil, errors.New(l.from.Problem("dashboard.users."+name+".password", "%s", err))
		}
		out[name] = dashboard.User{Password: hash, Right: dashboard.Right(user.Right)}
	}
	return out, nil
}

// welcome logs once where the page is, at any level: the address can hold the token, and then is the only way in.
func (d *daemon) welcome(ctx context.Context, page *dashboard.Dashboard, l net.Listener) {
	at := l.Addr().(*net.TCPAddr)
	host, scheme := "localhost", "http"
	if !at.IP.IsUnspecified() {
		host = at.IP.String()
	}
	if d.conf.HTTP.TLS.CertFile != "" {
		scheme = "https"
	}
	url := page.SignInURL(scheme + "://" + net.JoinHostPort(host, strconv.Itoa(at.Port)))
	d.log.Log(ctx, max(slog.LevelInfo, d.level.Level()), "the dashboard is here", "event", "daemon.dashboard", "url", url)
}

// mount shows the page beside what mux has.
func mount(mux *http.ServeMux, page *dashboard.Dashboard) {
	mux.Handle(dashboardPath, page)
	mux.Handle(dashboardPath+"/", page)
}

// together are the relays of one store.
type together []*relay.Relay

// HealthWith joins what the relays say.
func (t together) HealthWith(ctx context.Context, c admin.Counter) waybill.Health {
	if len(t) == 1 {
		return t[0].HealthWith(ctx, c)
	}
	all := waybill.Health{Live: true, Ready: true}
	for _, r := range t {
		h := r.HealthWith(ctx, c)
		all.Live, all.Ready = all.Live && h.Live, all.Ready && h.Ready
		all.Checks = append(all.Checks, h.Checks...)
	}
	return all
}

// Pause pauses the route at the relay that serves it.
func (t together) Pause(route string) error { return t.each(route, (*relay.Relay).Pause) }

// Resume is the way back.
func (t together) Resume(route string) error { return t.each(route, (*relay.Relay).Resume) }

func (t together) each(route string, do func(*relay.Relay, string) error) (err error) {
	for _, r := range t {
		if err = do(r, route); err == nil {
			return nil
		}
	}
	return err
}
