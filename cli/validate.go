package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxes"
)

func (c *command) validateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "validate", Short: "find what is wrong with settings, schemas, permissions, topology and pools", Args: cobra.NoArgs,
		Long: `validate finds every problem at once: in the settings, in the needs of relays that their stores and transports do not meet, in the schema
and the permissions of each store, in the topology of each transport for its subscriptions, and in the sizes of pools.
With the management API of RabbitMQ it looks at the oldest 1,000 messages that wait on a route, and names the topics
without a binding.
It changes nothing. Exit code 5 means that it found something. A note names a part that cannot be verified without an
optional setting; it is no finding.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := validation{c: c}
			v.all(cmd.Context())
			slices.Sort(v.problems)
			v.problems = slices.Compact(v.problems)
			if c.json {
				answer := map[string][]string{"problems": append([]string{}, v.problems...), "notes": append([]string{}, v.notes...)}
				if err := c.writeJSON(answer); err != nil {
					return err
				}
			} else {
				for _, note := range v.notes {
					say(c.io.Out, "note: %s\n", note)
				}
			}
			switch n := len(v.problems); {
			case n > 0 && c.json:
				return withCode(ExitFindings, "problems: %d", n)
			case n > 0:
				return &exit{ExitFindings, waybill.Invalid("waybill: validate", v.problems...)}
			case !c.json:
				say(c.io.Out, "no problem: %d relays, %d stores, %d transports, %d subscriptions\n",
					len(c.conf.Relays), len(c.conf.stores), len(c.conf.transports), len(c.conf.Subscriptions))
			}
			return nil
		},
	}
}

// validation collects problems, and notes: the parts that the settings leave unverified.
type validation struct {
	c               *command
	problems, notes []string
}

// add notes an error, whose problems are those of the settings at path.
func (v *validation) add(path string, err error) {
	if err == nil {
		return
	}
	if e, ok := asInvalid(err); ok {
		v.problems = append(v.problems, e.Problems...)
		return
	}
	v.bad(path, "%s", core.ErrorText(err))
}

func (v *validation) bad(path, format string, a ...any) {
	v.problems = append(v.problems, v.c.conf.from.Problem(path, format, a...))
}

func (v *validation) all(ctx context.Context) {
	c := v.c
	conf, err := c.app.load(c.sources())
	if conf == nil {
		v.problems = append(v.problems, strings.TrimPrefix(err.Error(), "waybill: configuration: "))
		if e, ok := asInvalid(err); ok {
			v.problems = e.Problems
		}
		return
	}
	c.conf = conf
	if err == nil && len(conf.stores)+len(conf.transports)+len(conf.Relays) == 0 {
		v.problems = append(v.problems, "there are no settings: give --config or WAYBILL_CONFIG, or a waybill.yaml in this folder")
		return
	}
	env := c.quiet()
	env.Passive = true // it changes nothing
	f := &fleet{stores: map[string]*Store{}, transports: map[string]*Transport{}}
	if v.add("", err); err == nil {
		f, err = c.openFleet(ctx, conf, env)
		v.add("relays", err)
	}
	for _, name := range sortedKeys(conf.stores) {
		path := "stores." + name
		if f.stores[name] == nil && !v.known(path) {
			f.stores[name], err = c.openStores(ctx, name, env)
			v.add(path, err)
		}
		if f.stores[name] != nil {
			v.store(ctx, path, name, f.stores[name], f)
		}
	}
	for _, name := range sortedKeys(conf.transports) {
		path := "transports." + name
		if f.transports[name] == nil && !v.known(path) {
			f.transports[name], err = c.openTransport(ctx, name, env)
			v.add(path, err)
		}
		if f.transports[name] != nil {
			v.transport(ctx, path, name, f.transports[name])
		}
	}
	v.unroutable(ctx, f)
}

// known reports whether there is a problem with the settings below path, so that their store or transport cannot be
// opened.
func (v *validation) known(path string) bool {
	return slices.ContainsFunc(v.problems, func(p string) bool { return strings.Contains(p, ": "+path+".") || strings.Contains(p, ": "+path+":") })
}

// check asks an adapter whether it can work, and says so at its url if it has one.
func (v *validation) check(ctx context.Context, path string, adapter any) bool {
	err := v.asked(ctx, adapter)
	v.add(v.url(path), err)
	return err == nil
}

// asked asks an adapter whether it can work.
func (v *validation) asked(ctx context.Context, adapter any) error {
	checker, ok := core.As[core.Checker](adapter)
	if !ok {
		return nil
	}
	ctx, cancel := v.c.limited(ctx)
	defer cancel()
	return checker.Check(ctx)
}

// url is the path of the url of an adapter, if it has one.
func (v *validation) url(path string) string {
	if from := v.c.conf.from; from.Where(path+".url") != from.Where(path) {
		return path + ".url"
	}
	return path
}

func (v *validation) store(ctx context.Context, path, name string, s *Store, f *fleet) {
	if s.Outboxes != nil {
		v.outboxes(ctx, path, s.Outboxes)
		return
	}
	if pool, ok := core.As[interface{ Pool() waybill.Pool }](s.Outbox); ok {
		served := slices.ContainsFunc(slices.Collect(maps.Values(f.ends)), func(e ends) bool { return e.store == name })
		if p := pool.Pool(); served && p.Max > 0 && p.Relay > p.Max {
			v.bad(path, "its pool has %d connections, but a relay uses up to %d at a time: raise its size, with pool_max_conns in the url say", p.Max, p.Relay)
		}
	}
	if !v.check(ctx, path, s.Outbox) {
		return
	}
	drift := s.Schema != nil
	// Drift covers the inbox's tables, and asks for no right that only a consumer needs.
	if s.Inbox != nil && !drift {
		v.check(ctx, path, s.Inbox)
	}
	var found []admin.Difference
	var err error
	ctx, cancel := v.c.limited(ctx)
	defer cancel()
	if drift {
		found, err = s.Schema.Drift(ctx)
	} else if d, ok := core.As[admin.DriftChecker](s.Outbox); ok {
		found, err = d.Drift(ctx)
	}
	v.add(path, err)
	for _, d := range found {
		v.bad(path, "schema: %s", different(d))
	}
}

// namedOutboxes is how many outboxes with a problem validate names.
const namedOutboxes = 10

// outboxes looks into each of many outboxes.
func (v *validation) outboxes(ctx context.Context, path string, all outboxes.All) {
	seen, bad := 0, 0
	for after, more := "", true; more; {
		page, err := all.Look(ctx, after)
		if err != nil {
			v.add(v.url(path), err)
			return
		}
		for _, o := range page.Outboxes {
			after = o.Name
			seen++
			one, cancel := v.c.limited(ctx)
			_, err := all.Peek(one, o.Name, []string{waybill.DefaultRoute})
			cancel()
			if err == nil {
				continue
			}
			if bad++; bad <= namedOutboxes {
				v.bad(path, "outbox %s: %s", o.Name, core.ErrorText(err))
			}
		}
		more = page.More
	}
	switch {
	case seen == 0:
		v.bad(path, "there is no outbox in any of its schemas: run waybill migrate up with --set %s.schema=NAME for each", path)
	case bad > namedOutboxes:
		v.bad(path, "%d of %d outboxes have a problem; these are the first %d", bad, seen, namedOutboxes)
	}
}

func (v *validation) transport(ctx context.Context, path, name string, t *Transport) {
	// a missing object at the broker is an error of both: the second one lists all of them
	if err := v.asked(ctx, t.Publisher); err != nil && (t.Topology == nil || !errors.Is(err, waybill.ErrMisconfigured) || !v.topology(ctx, path, name, t)) {
		v.add(v.url(path), err)
		return
	} else if err == nil && t.Topology != nil {
		v.topology(ctx, path, name, t)
	}
}

// topology compares the topology with the broker, and reports whether it found a difference.
func (v *validation) topology(ctx context.Context, path, name string, t *Transport) bool {
	subs := v.c.conf.subscriptionsOf(name)
	if len(subs) == 0 {
		return false
	}
	ctx, cancel := v.c.limited(ctx)
	defer cancel()
	found, err := t.Topology.Verify(ctx, subs)
	if e, ok := errors.AsType[*UnverifiableError](err); ok {
		v.notes = append(v.notes, v.c.conf.from.Problem(path, "topology: queues and bindings are not verified: %s", e.Cause))
		return false
	}
	v.add(path, err)
	for _, d := range found {
		v.bad(path, "topology: %s", different(d))
	}
	return len(found) > 0
}

// waitingRecords is how many of the oldest records that wait on a route validate looks at.
const waitingRecords = 1000

// unroutable finds topics of waiting messages that have no binding at the transport of their route.
func (v *validation) unroutable(ctx context.Context, f *fleet) {
	for _, name := range sortedKeys(f.relays) {
		r, e := v.c.conf.Relays[name], f.ends[name]
		if f.stores[e.store].Outboxes != nil {
			continue
		}
		lister, ok := core.As[admin.Inspector](f.stores[e.store].Outbox)
		if !ok || v.known("stores."+e.store) {
			continue
		}
		for i := range f.options[name].Routes {
			to := r.Transport
			if i < len(r.Routes) && r.Routes[i].Transport != "" {
				to = r.Routes[i].Transport
			}
			to = the(to, v.c.conf.transports)
			binder, ok := f.transports[to].Topology.(Binder)
			if !ok || v.known("transports."+to) {
				continue
			}
			v.add("relays."+name, v.unbound(ctx, "relays."+name, to, lister, binder, storedRoutes(&f.options[name].Routes[i])))
		}
	}
}

func (v *validation) unbound(ctx context.Context, path, transport string, lister admin.Inspector, binder Binder, routes []string) error {
	ctx, cancel := v.c.limited(ctx)
	defer cancel()
	waits := admin.Filter{Routes: routes, States: []core.State{core.StatePending, core.StateFailed}}
	page, err := lister.List(ctx, waits, admin.PageRequest{Limit: waitingRecords})
	if err != nil {
		return err
	}
	var topics []string
	for i := range page.Records {
		topics = append(topics, page.Records[i].Envelope.Topic)
	}
	slices.Sort(topics)
	topics, err = binder.Unbound(ctx, slices.Compact(topics))
	for _, topic := range topics {
		v.bad(path, "topic %q: messages of it wait on route %s, and no queue is bound for it at transports.%s: bind one (waybill topology declare), or cancel them (waybill cancel --topic)",
			topic, routes[0], transport)
	}
	return err
}

func different(d admin.Difference) string {
	return fmt.Sprintf("%s is %s, not %s", d.Object, d.Have, d.Want)
}
