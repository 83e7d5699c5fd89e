package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// operatorCommands are the commands with which people look after stores and brokers.
func (c *command) operatorCommands() []*cobra.Command {
	return []*cobra.Command{
		c.migrateCommand(), c.statusCommand(), c.listCommand(), c.showCommand(), c.redriveCommand(), c.cancelCommand(),
		c.keysCommand(), c.purgeCommand(), c.dlqCommand(), c.topologyCommand(), c.inboxCommand(), c.importCommand(), c.auditCommand(), c.benchCommand(),
	}
}

// group is a command that does nothing but hold others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: choose(use, subs), RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	g.AddCommand(subs...)
	return g
}

// choose refuses arguments that name no command.
func choose(use string, subs []*cobra.Command) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var names []string
		for _, s := range subs {
			names = append(names, s.Name())
		}
		slices.Sort(names)
		return withCode(ExitUsage, "%s has no command %q: choose of %s", use, args[0], strings.Join(names, ", "))
	}
}

// able returns the optional interface T of a store or a transport, or an error that says why a command needs it.
func able[T any](of any, what, does string) (T, error) {
	t, ok := core.As[T](of)
	if !ok {
		return t, withCode(ExitUsage, "this %s cannot %s (%w): see docs/capabilities.md", what, does, waybill.ErrUnsupported)
	}
	return t, nil
}

// storeFlag adds the flag that names a store.
func storeFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "store", "", "name in stores; the only one if empty")
}

// onStore runs fn with a store that is open, and says what to do if its tables are missing.
func (c *command) onStore(name *string, fn func(ctx context.Context, s *Store, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := c.openStore(cmd.Context(), *name, c.quiet())
		if err != nil {
			return err
		}
		c.begins(cmd, "store "+the(*name, c.conf.stores), args)
		c.recordTo(s)
		return c.explain(cmd.Context(), s, *name, fn(cmd.Context(), s, args))
	}
}

// explain adds to an error of a store that its schema is missing or old, if it is.
func (c *command) explain(ctx context.Context, s *Store, name string, err error) error {
	if s.Schema == nil || !errors.Is(err, waybill.ErrMisconfigured) {
		return err
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	parts, lost := s.Schema.Status(ctx)
	if lost != nil || !slices.ContainsFunc(parts, func(p SchemaStatus) bool { return p.Applied < p.Newest }) {
		return err
	}
	if name != "" {
		name = " --store " + name
	}
	return fmt.Errorf("%w\nthe schema is missing or old: run waybill migrate up%s as the owner of the tables", err, name)
}
