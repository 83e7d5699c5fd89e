package cli

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// act does something between two lines of the audit record, which a dry run does not need.
func (c *command) act(ctx context.Context, dryRun bool, do func(context.Context) error) error {
	if dryRun {
		return do(ctx)
	}
	return c.acts.entry.Record(ctx, c.acts.to, do)
}

// note adds the outcome to the last line.
func (c *command) note(format string, a ...any) { c.acts.entry.Result = fmt.Sprintf(format, a...) }
