package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/health"
	"github.com/waybill-go/waybill/internal/obs"
	"github.com/waybill-go/waybill/relay"
)

// stopWait bounds each step after the relays have ended.
const stopWait = 5 * time.Second

// daemon is a run of waybill relay.
type daemon struct {
	c          *command
	conf       *loaded
	level      *slog.LevelVar
	log        *slog.Logger
	untilEmpty bool
	most       time.Duration // 0 = any time

	fleet   *fleet
	page    *dashboard.Dashboard // nil = off
	secrets *loaded              // the settings whose secrets are in use
}

func newDaemon(c *command, conf *loaded) *daemon {
	d := &daemon{c: c, conf: conf, secrets: conf, level: new(slog.LevelVar)}
	d.log = newLogger(c.io.Err, conf.Log, d.level)
	return d
}

// run opens everything, runs it until ctx ends, and ends it in order: relays, probes, telemetry. Stores and transports
// are closed with the command.
func (d *daemon) run(ctx context.Context) (err error) {
	signals, ignore := hangups()
	defer ignore()
	listener, err := d.listen(ctx)
	if err != nil {
		return err
	}
	if listener != nil {
		defer func() { _ = listener.Close() }() // if the server does not get to it
	}
	tel, err := newTelemetry(ctx, d.conf, d.c.app.version())
	if err != nil {
		return err
	}
	failed := obs.NewLogger(d.log)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		failed.Event(context.WithoutCancel(ctx), slog.LevelWarn, "daemon.telemetry_failed", "telemetry was not sent", slog.Any("error", err))
	}))
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
		defer cancel()
		if err := tel.close(ctx); err != nil {
			d.log.Warn("telemetry was not sent", "event", "daemon.telemetry_failed", "error", err)
		}
	}()
	tel.Logger = d.log
	if d.fleet, err = d.c.openFleet(ctx, d.conf, tel.Env); err != nil {
		return err
	}
	d.pause(d.conf)
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if d.page, err = d.newPage(tel.page); err != nil {
		return err
	}
	stop, err := d.serve(ctx, listener, tel.metrics, d.page, cancel)
	if err != nil {
		return err
	}
	defer stop()
	d.log.Info("relays start", "event", "daemon.start", "relays", strings.Join(sortedKeys(d.fleet.relays), ", "), "version", d.c.app.version())
	runners := []waybill.Runner{runner(func(ctx context.Context) error { return d.watch(ctx, signals) })}
	for _, name := range sortedKeys(d.fleet.relays) {
		runners = append(runners, runner(func(ctx context.Context) error {
			if err := d.fleet.relays[name].Run(ctx); err != nil {
				return fmt.Errorf("%s: %w", d.where(name), err)
			}
			return nil
		}))
	}
	if d.page != nil {
		runners = append(runners, d.page)
	}
	if d.untilEmpty {
		runners = append(runners, runner(func(ctx context.Context) error {
			cancel(d.drainAll(ctx))
			return nil
		}))
	}
	err = waybill.Run(ctx, runners...)
	if cause := context.Cause(ctx); err == nil && outer.Err() == nil && !errors.Is(cause, errEmpty) {
		err = cause // the daemon's own
	}
	d.log.Info("relays ended", "event", "daemon.stop")
	return err
}

// where names a relay and the settings that it works with.
func (d *daemon) where(name string) string {
	e := d.fleet.ends[name]
	return d.conf.from.Problem("relays."+name, "from stores.%s to transports.%s", e.store, strings.Join(e.transports, ", transports."))
}

// runner is a function as a waybill.Runner.
type runner func(ctx context.Context) error

func (r runner) Run(ctx context.Context) error { return r(ctx) }

// fleet has the relays of a configuration, with their stores and transports.
type fleet struct {
	stores     map[string]*Store
	transports map[string]*Transport
	relays     map[string]engine
	options    map[string]relay.Options
	ends       map[string]ends
	keyed      []*keyedStep
}

// engine is a [relay.Relay], or a [relay.Fleet].
type engine interface {
	waybill.Runner
	health.Checker
	Pause(route string) error
	Resume(route string) error
}

// ends are the names of both ends of a relay.
type ends struct {
	store      string
	transports []string
}

// openFleet makes all relays, and opens each store and each transport once, but a store of several relays once for
// each: see relay.New. The error has all problems.
func (c *command) openFleet(ctx context.Context, conf *loaded, env Env) (*fleet, error) {
	f := &fleet{map[string]*Store{}, map[string]*Transport{}, map[string]engine{}, map[string]relay.Options{}, map[string]ends{}, nil}
	var problems []string
	var errs []error
	fail := func(err error) {
		if e, ok := asInvalid(err); ok {
			problems = append(problems, e.Problems...)
		} else if err != nil {
			errs = append(errs, err)
		}
	}
	refused := map[string]bool{} // so that each is told once
	store := func(name string) *Store {
		name = the(name, conf.stores)
		if f.stores[name] == nil && !refused["stores."+name] {
			s, err := c.openStores(ctx, name, env)
			fail(err)
			if refused["stores."+name] = err != nil; err == nil {
				f.stores[name] = s
			}
		}
		return f.stores[name]
	}
	transport := func(name string) *Transport {
		name = the(name, conf.transports)
		if f.transports[name] == nil && !refused["transports."+name] {
			t, err := c.openTransport(ctx, name, env)
			fail(err)
			if refused["transports."+name] = err != nil; err == nil {
				f.transports[name] = t
			}
		}
		return f.transports[name]
	}
	served := map[string]bool{} // stores whose first value has a relay
	for _, name := range sortedKeys(conf.Relays) {
		r := conf.Relays[name]
		opts := r.options()
		if len(opts.Routes) == 0 {
			opts.Routes = []relay.Route{{}}
		}
		e := ends{store: the(r.Store, conf.stores)}
		from, complete := store(e.store), true
		if from != nil && served[e.store] {
			var err error
			from, err = c.openStores(ctx, e.store, env)
			fail(err)
		}
		served[e.store] = true
		for i := range opts.Routes {
			to := r.Transport
			if i < len(r.Routes) && r.Routes[i].Transport != "" {
				to = r.Routes[i].Transport
			}
			to = the(to, conf.transports)
			t := transport(to)
			switch {
			case t == nil:
			case i < len(r.Routes):
				var keyed []*keyedStep
				opts.Routes[i].Publisher, keyed = r.Routes[i].publisher(t.Publisher, routePath(name, i), func(path, text string) {
					problems = append(problems, conf.from.Problem(path, "%s", text))
				})
				f.keyed = append(f.keyed, keyed...)
			default:
				opts.Routes[i].Publisher = t.Publisher
			}
			complete = complete && opts.Routes[i].Publisher != nil
			if !slices.Contains(e.transports, to) {
				e.transports = append(e.transports, to)
			}
		}
		if from == nil || !complete {
			continue
		}
		if opts.Name == "" && len(conf.Relays) > 1 { // it is a label of the metrics
			opts.Name = fmt.Sprintf("%s: %s to %s", name, e.store, strings.Join(e.transports, "+"))
		}
		opts.Logger, opts.MeterProvider, opts.TracerProvider = env.Logger, env.MeterProvider, env.TracerProvider
		made, err := newEngine(from, opts, r.Fleet)
		if err != nil {
			fail(conf.opening("relays."+name, err))
			continue
		}
		f.relays[name], f.options[name], f.ends[name] = made, opts, e
	}
	slices.Sort(problems)
	if err := waybill.Invalid("waybill: configuration", slices.Compact(problems)...); err != nil || len(errs) > 0 {
		return f, errors.Join(append(errs, err)...)
	}
	return f, nil
}

// newEngine returns the relay of a store, or the fleet of many outboxes.
func newEngine(from *Store, opts relay.Options, fleet relay.FleetOptions) (engine, error) {
	if from.Outboxes != nil {
		return relay.NewFleet(from.Outboxes, nil, opts, fleet)
	}
	return relay.New(from.Outbox, nil, opts)
}

// the returns name, or the name of the only one; load has checked that there is one.
func the(name string, among map[string]any) string {
	if name == "" && len(among) == 1 {
		for only := range maps.Keys(among) {
			return only
		}
	}
	return name
}
