package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin/audit"
	"github.com/waybill-go/waybill/core"
)

// line is what the audit record has of a command: it is made before the command acts, if it acts at all.
type line struct {
	entry audit.Entry
	to    audit.Recorder
}

// begins notes which command may act, and on what.
func (c *command) begins(cmd *cobra.Command, target string, args []string) {
	filter := url.Values{}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if cmd.InheritedFlags().Lookup(f.Name) == nil { // settings can hold passwords
			filter.Set(f.Name, f.Value.String())
		}
	})
	if len(args) > 0 {
		filter["args"] = args
	}
	_, action, _ := strings.Cut(cmd.CommandPath(), " ")
	host, _ := os.Hostname()
	c.acts.entry = audit.Entry{User: c.operator(), Via: "command", From: host, Action: action, Target: target, Filter: filter.Encode()}
}

// operator is the user of the system, and who became it by sudo.
func (c *command) operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	for _, v := range c.io.Environ {
		if by, ok := strings.CutPrefix(v, "SUDO_USER="); ok && by != "" {
			return name + " by sudo of " + by
		}
	}
	return name
}

// recordTo names the store whose audit record gets what the command does; one that keeps none is passed over.
func (c *command) recordTo(s *Store) {
	c.acts.to, _ = core.As[audit.Recorder](s.Outbox)
}

// recordBeside opens the store whose audit record gets an act on a broker: that with this name, or that of audit.store
// in the settings, or the only one.
func (c *command) recordBeside(ctx context.Context, store string) error {
	name := cmp.Or(store, c.conf.Audit.Store)
	if name == "" && len(c.conf.stores) != 1 {
		return nil
	}
	s, err := c.openStores(ctx, name, c.quiet())
	if err == nil && s.Outbox != nil { // many outboxes keep no record of acts on brokers
		c.recordTo(s)
	}
	return err
}

// actOnTables is act for a command that makes or drops the tables, the record among them. A command that makes the
// record is in it when it has ended. One that drops the record leaves none.
func (c *command) actOnTables(ctx context.Context, do func(context.Context) error) error {
	to := c.acts.to
	if to == nil {
		return do(ctx)
	}
	if c.recorded(ctx, to) {
		c.acts.to = untilDropped{to, c}
		return c.act(ctx, false, do)
	}
	if err := do(ctx); err != nil || !c.recorded(ctx, to) {
		return err
	}
	return c.act(ctx, false, func(context.Context) error { return nil })
}

// recorded reports whether the audit record is there.
func (c *command) recorded(ctx context.Context, to audit.Recorder) bool {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	_, err := to.ListAudit(ctx, 0, 1)
	return !errors.Is(err, waybill.ErrMisconfigured)
}

// untilDropped is a record that the act itself can drop.
type untilDropped struct {
	audit.Recorder
	c *command
}

func (u untilDropped) AppendAudit(ctx context.Context, e audit.Entry) error {
	err := u.Recorder.AppendAudit(ctx, e)
	if err != nil && e.Phase == "end" && !u.c.recorded(ctx, u.Recorder) {
		return nil
	}
	return err
}

// act does something between two lines of the audit record, which a dry run does not need.
func (c *command) act(ctx context.Context, dryRun bool, do func(context.Context) error) error {
	if dryRun {
		return do(ctx)
	}
	return c.acts.entry.Record(ctx, c.acts.to, do)
}

// note adds the outcome to the last line.
func (c *command) note(format string, a ...any) { c.acts.entry.Result = fmt.Sprintf(format, a...) }
