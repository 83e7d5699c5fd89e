package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
)

// gcWorkers is how many queues are deleted at a time. The broker's statistics are late, so each takes a while.
const gcWorkers = 8

// topologyRun is one command about the topology of a transport.
type topologyRun struct {
	Topology
	subs []core.Subscription
}

func (c *command) topologyCommand() *cobra.Command {
	var transport string
	run := func(fn func(ctx context.Context, t topologyRun) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error {
			t, err := c.openTransport(cmd.Context(), transport, c.quiet())
			if err != nil {
				return err
			}
			if t.Topology == nil {
				return withCode(ExitUsage, "a transport of this kind has no topology to manage: it needs none, or makes it by itself")
			}
			c.begins(cmd, "transport "+the(transport, c.conf.transports), nil)
			return fn(cmd.Context(), topologyRun{t.Topology, c.conf.subscriptionsOf(transport)})
		}
	}
	text := func(get func(t topologyRun) (string, error)) func(*cobra.Command, []string) error {
		return run(func(_ context.Context, t topologyRun) error {
			text, err := get(t)
			say(c.io.Out, "%s", text)
			return err
		})
	}
	var format string
	var users BrokerUsers
	export := &cobra.Command{
		Use: "export --format FORMAT", Short: "print the exchanges, queues and bindings for a tool", Args: cobra.NoArgs,
		Long: `export prints the objects that the subscriptions of the configuration need, in a format of other tools. For rabbitmq
these are definitions and terraform. With --relay, --consumer or --operator it has the least permissions of these users,
too; it makes no users.`,
		RunE: text(func(t topologyRun) (string, error) {
			if slices.Contains(t.Formats(), format) {
				return t.Export(t.subs, format, users)
			}
			return "", withCode(ExitUsage, "--format: %q is unknown: choose of %s", format, strings.Join(t.Formats(), ", "))
		}),
	}
	export.Flags().StringVar(&format, "format", "", "format")
	export.Flags().StringVar(&users.Relay, "relay", "", "user of relays, which publish")
	export.Flags().StringVar(&users.Consumer, "consumer", "", "user of the consumers of these subscriptions")
	export.Flags().StringVar(&users.Operator, "operator", "", "user of people who list, replay and purge parked messages")
	var dryRun bool
	gc := &cobra.Command{
		Use: "gc", Short: "delete queues of the transport's exchange that no subscription of the configuration has", Args: cobra.NoArgs,
		Long: `gc finds queues that belong to the transport's exchange, and to no subscription of the configuration: of services that are
gone, and of retry delays that were changed. It asks, then deletes those that are empty and without a receiver. The
configuration must therefore list the subscriptions of every service that shares the exchange. Exit code 4 says that some
could not be deleted. A queue without statistics at the broker is not deleted.`,
		RunE: run(func(ctx context.Context, t topologyRun) error { return c.gc(ctx, t, dryRun) }),
	}
	gc.Flags().BoolVar(&dryRun, "dry-run", false, "list, and delete nothing")
	g := group(
		"topology", "manage the exchanges, queues and bindings of a transport",
		&cobra.Command{
			Use: "print", Short: "print the exchanges, queues and bindings for people", Args: cobra.NoArgs,
			RunE: text(func(t topologyRun) (string, error) {
				text, err := t.Print(t.subs)
				return cleanLines(text), err
			}),
		},
		&cobra.Command{
			Use: "declare", Short: "make what is missing", Args: cobra.NoArgs,
			RunE: run(func(ctx context.Context, t topologyRun) error {
				if err := c.recordBeside(ctx, ""); err != nil {
					return err
				}
				err := c.act(ctx, false, func(ctx context.Context) error {
					ctx, cancel := c.limited(ctx)
					defer cancel()
					return t.Declare(ctx, t.subs)
				})
				if err != nil {
					return err
				}
				return c.done("declared", len(t.subs))
			}),
		},
		&cobra.Command{
			Use: "verify", Short: "compare it with the broker; exit code 5 if something differs", Args: cobra.NoArgs,
			RunE: run(func(ctx context.Context, t topologyRun) error { return c.verify(ctx, t) }),
		},
		export, gc,
	)
	for _, cmd := range g.Commands() {
		cmd.Flags().StringVar(&transport, "transport", "", "name in transports; the only one if empty")
	}
	return g
}

// subscriptionsOf returns the subscriptions of a transport, each with the retry delays that a consumer would ask for.
func (l *loaded) subscriptionsOf(transport string) []core.Subscription {
	var out []core.Subscription
	for i := range l.Subscriptions {
		s := l.Subscriptions[i]
		if s.Transport != transport && s.Transport != "" && transport != "" {
			continue
		}
		if s.Retry == nil {
			s.Retry = consumer.DefaultRetry()
		}
		out = append(out, core.SubscriptionOf(&s.Subscription))
	}
	return out
}

// done tells what became of the subscriptions' objects.
func (c *command) done(what string, subscriptions int) error {
	if c.json {
		return c.writeJSON(map[string]int{"subscriptions": subscriptions})
	}
	say(c.io.Out, "%s for %s\n", what, counted(subscriptions, "subscription"))
	return nil
}

func (c *command) verify(ctx context.Context, t topologyRun) error {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	found, err := t.Verify(ctx, t.subs)
	if err != nil {
		return err
	}
	all := differences(found)
	switch {
	case c.json:
		err = c.writeJSON(struct {
			Differences []differenceJSON `json:"differences"`
		}{all})
	case len(all) == 0:
		return c.done("as it must be", len(t.subs))
	default:
		err = c.differenceTable(all)
	}
	if err == nil && len(all) > 0 {
		err = withCode(ExitFindings, "the broker has %s", counted(len(all), "difference"))
	}
	return err
}

// gc lists the queues and exchanges of no subscription, and deletes them.
func (c *command) gc(ctx context.Context, t topologyRun, dryRun bool) error {
	asked, cancel := c.limited(ctx)
	unused, err := t.Unused(asked, t.subs)
	cancel()
	if err != nil {
		return err
	}
	if dryRun || len(unused) == 0 {
		return c.collected(unused, nil, nil)
	}
	for _, name := range unused {
		say(c.io.Err, "%s\n", clean(name))
	}
	if err := c.confirm(ctx, "delete of these %s those that are empty and not received from", counted(len(unused), "queue")); err != nil {
		return err
	}
	if err := c.recordBeside(ctx, ""); err != nil {
		return err
	}
	var deleted []string
	kept := map[string]string{}
	err = c.act(ctx, false, func(ctx context.Context) (err error) {
		deleted, err = t.collect(ctx, unused, kept)
		for _, name := range deleted {
			c.acts.entry.Add(name)
		}
		c.note("%s deleted", counted(len(deleted), "queue"))
		return err
	})
	if err != nil {
		return err
	}
	if err := c.collected(unused, deleted, kept); err != nil {
		return err
	}
	if len(kept) > 0 {
		return withCode(ExitRefused, "left alone: %s", counted(len(kept), "queue"))
	}
	return nil
}

// collect deletes queues, and notes why others are kept.
func (t topologyRun) collect(ctx context.Context, unused []string, kept map[string]string) (deleted []string, err error) {
	errs := make([]error, len(unused))
	var group errgroup.Group
	group.SetLimit(gcWorkers)
	for i, name := range unused {
		group.Go(func() error {
			errs[i] = t.Delete(ctx, t.subs, name)
			return nil
		})
	}
	_ = group.Wait()
	for i, name := range unused {
		switch e := errs[i]; {
		case e == nil:
			deleted = append(deleted, name)
		case errors.Is(e, waybill.ErrInFlight), ctx.Err() != nil:
			kept[name] = e.Error()
		default:
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		err = fmt.Errorf("%s were deleted beside the error: %w", counted(len(deleted), "queue"), err)
	}
	return deleted, err
}

// collected tells what gc found and did.
func (c *command) collected(unused, deleted []string, kept map[string]string) error {
	if c.json {
		return c.writeJSON(struct {
			Unused  []string          `json:"unused"`
			Deleted []string          `json:"deleted"`
			Kept    map[string]string `json:"kept,omitempty"`
		}{append([]string{}, unused...), append([]string{}, deleted...), kept})
	}
	if len(unused) == 0 {
		say(c.io.Out, "no queue is unused\n")
	}
	for _, name := range unused {
		what := "unused"
		if reason, ok := kept[name]; ok {
			what = "stays: " + reason
		} else if len(deleted) > 0 {
			what = "deleted"
		}
		say(c.io.Out, "%s: %s\n", clean(name), clean(what))
	}
	return nil
}
