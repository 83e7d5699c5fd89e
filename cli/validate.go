package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

func (c *command) validateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "validate", Short: "find what is wrong with settings, schemas, permissions, topology and pools", Args: cobra.NoArgs,
		Long: `validate finds every problem at once: in the settings, in what relays ask of their stores and transports, in the schema
and the permissions of each store, in the topology of each transport for its subscriptions, and in the sizes of pools.
It changes nothing. Exit code 5 means that it found something.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := validation{c: c}
			v.all(cmd.Context())
			slices.Sort(v.problems)
			v.problems = slices.Compact(v.problems)
			if c.json {
				if err := c.writeJSON(map[string][]string{"problems": append([]string{}, v.problems...)}); err != nil {
					return err
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

// validation collects problems.
type validation struct {
	c        *command
	problems []string
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
	f := &fleet{stores: map[string]*Store{}, transports: map[string]*Transport{}}
	if v.add("", err); err == nil {
		f, err = c.openFleet(ctx, conf, c.quiet())
		v.add("relays", err)
	}
	for _, name := range sortedKeys(conf.stores) {
		path := "stores." + name
		if f.stores[name] == nil && !v.known(path) {
			f.stores[name], err = c.openStore(ctx, name, c.quiet())
			v.add(path, err)
		}
		if f.stores[name] != nil {
			v.store(ctx, path, name, f.stores[name], f)
		}
	}
	for _, name := range sortedKeys(conf.transports) {
		path := "transports." + name
		if f.transports[name] == nil && !v.known(path) {
			f.transports[name], err = c.openTransport(ctx, name, c.quiet())
			v.add(path, err)
		}
		if f.transports[name] != nil {
			v.transport(ctx, path, name, f.transports[name])
		}
	}
}

// known reports whether there is a problem with the settings below path: what they say cannot be opened.
func (v *validation) known(path string) bool {
	return slices.ContainsFunc(v.problems, func(p string) bool { return strings.Contains(p, ": "+path+".") || strings.Contains(p, ": "+path+":") })
}

// check asks an adapter whether it can work, and says so at its url if it has one.
func (v *validation) check(ctx context.Context, path string, adapter any) bool {
	checker, ok := core.As[core.Checker](adapter)
	if !ok {
		return true
	}
	ctx, cancel := v.c.limited(ctx)
	defer cancel()
	err := checker.Check(ctx)
	if from := v.c.conf.from; from.Where(path+".url") != from.Where(path) {
		path += ".url"
	}
	v.add(path, err)
	return err == nil
}

func (v *validation) store(ctx context.Context, path, name string, s *Store, f *fleet) {
	if pool, ok := core.As[interface{ Pool() waybill.Pool }](s.Outbox); ok {
		relays := 0
		for _, e := range f.ends {
			if e.store == name {
				relays++
			}
		}
		if p := pool.Pool(); p.Max > 0 && p.Relay*relays > p.Max {
			v.bad(path, "its pool has %d connections, but %d relays use up to %d at a time: raise its size, with pool_max_conns in the url say", p.Max, relays, p.Relay*relays)
		}
	}
	if !v.check(ctx, path, s.Outbox) {
		return
	}
	if s.Inbox != nil {
		v.check(ctx, path, s.Inbox)
	}
	drift := s.Schema != nil
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

func (v *validation) transport(ctx context.Context, path, name string, t *Transport) {
	if !v.check(ctx, path, t.Publisher) || t.Topology == nil {
		return
	}
	var subs []core.Subscription
	for i := range v.c.conf.Subscriptions {
		if s := &v.c.conf.Subscriptions[i]; the(s.Transport, v.c.conf.transports) == name {
			subs = append(subs, core.SubscriptionOf(&s.Subscription))
		}
	}
	if len(subs) == 0 {
		return
	}
	ctx, cancel := v.c.limited(ctx)
	defer cancel()
	found, err := t.Topology.Verify(ctx, subs)
	v.add(path, err)
	for _, d := range found {
		v.bad(path, "topology: %s", different(d))
	}
}

func different(d admin.Difference) string {
	return fmt.Sprintf("%s is %s, not %s", d.Object, d.Have, d.Want)
}
