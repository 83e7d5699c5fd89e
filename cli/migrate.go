package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func (c *command) migrateCommand() *cobra.Command {
	var store, only string
	var to int
	var force bool
	schema := func(fn func(ctx context.Context, s Schema) error) func(*cobra.Command, []string) error {
		return c.onStore(&store, func(ctx context.Context, s *Store, _ []string) error {
			if s.Schema == nil {
				return withCode(ExitUsage, "this store has no schema that a command could manage")
			}
			part, err := onlyPart(s.Schema, only)
			if err != nil {
				return err
			}
			return fn(ctx, part)
		})
	}
	up := &cobra.Command{
		Use: "up", Short: "create the tables, or bring them to the newest version", Args: cobra.NoArgs,
		Long: `up creates the tables, or brings them to the newest version. It takes as long as it takes, and can be run again at any
time. Several at once wait for each other. With --only a database gets the outbox alone, or the inbox alone.`,
		RunE: schema(func(ctx context.Context, s Schema) error {
			if err := c.alive(ctx, s); err != nil {
				return err
			}
			if err := c.actOnTables(ctx, s.Up); err != nil {
				return err
			}
			return c.schemaStatus(ctx, s, false)
		}),
	}
	down := &cobra.Command{
		Use: "down --to VERSION", Short: "go back to an older version; 0 deletes the tables and all messages", Args: cobra.NoArgs,
		Long: `down goes back to a version: it undoes every later migration. The versions of all parts are one series, so one that
is older than a table drops the table with all that is in it. The question names those tables and counts their rows.
While there are messages or marks in them, down refuses: drain the outbox first (waybill status --wait-empty), or give
--force. An inbox without its marks lets each message that comes again have its effect again.`,
		RunE: schema(func(ctx context.Context, s Schema) error {
			if to < 0 {
				return withCode(ExitUsage, "--to: name the version to go back to; 0 deletes the tables and all messages in them")
			}
			if err := c.alive(ctx, s); err != nil {
				return err
			}
			what, err := c.wayBack(ctx, s, to, force)
			if err != nil {
				return err
			}
			if err := c.confirm(ctx, "%s", what); err != nil {
				return err
			}
			if err := c.actOnTables(ctx, func(ctx context.Context) error { return s.Down(ctx, to) }); err != nil {
				return err
			}
			return c.schemaStatus(ctx, s, false)
		}),
	}
	down.Flags().IntVar(&to, "to", -1, "the version to go back to")
	down.Flags().BoolVar(&force, "force", false, "drop tables that hold messages or marks, too")
	status := &cobra.Command{
		Use: "status", Short: "show the versions of the tables; exit code 5 if something is missing or differs", Args: cobra.NoArgs,
		RunE: schema(func(ctx context.Context, s Schema) error { return c.schemaStatus(ctx, s, true) }),
	}
	text := &cobra.Command{
		Use: "print", Short: "print the SQL that makes the tables in an empty database", Args: cobra.NoArgs,
		RunE: schema(func(_ context.Context, s Schema) error {
			sql, err := s.Print()
			if err != nil {
				return err
			}
			return c.printSQL(sql)
		}),
	}
	g := group("migrate", "manage the tables of a store", up, down, status, text, c.grantsCommand(schema))
	for _, cmd := range g.Commands() {
		storeFlag(cmd, &store)
		cmd.Flags().StringVar(&only, "only", "", "outbox or inbox; both if empty")
	}
	return g
}

// onlyPart returns the schema of the part that --only names.
func onlyPart(s Schema, only string) (Schema, error) {
	switch p, ok := s.(Partial); {
	case only == "":
		return s, nil
	case only != "outbox" && only != "inbox":
		return nil, withCode(ExitUsage, "--only: there is no part %q: say outbox or inbox, or leave it out for both", only)
	case !ok:
		return nil, withCode(ExitUsage, "--only: outbox and inbox of this store share their tables: leave it out")
	default:
		return p.Only(only)
	}
}

func (c *command) grantsCommand(onSchema func(func(context.Context, Schema) error) func(*cobra.Command, []string) error) *cobra.Command {
	var roles Roles
	cmd := &cobra.Command{
		Use: "grants", Short: "print the SQL that gives roles of Postgres what they need, and no more", Args: cobra.NoArgs,
		Long: `grants prints the SQL that gives roles of Postgres what they need and no more. Name a role for each kind of program; one
role can have several. Run what it prints as the owner of the tables, after waybill migrate up and after each upgrade:

  waybill migrate grants --producer shop --relay shop_relay | psql "$OWNER_URL"

It makes no roles. --route and --source bind the producer and the canceller to their own messages by row-level security;
run it once for each such service.`,
		RunE: onSchema(func(_ context.Context, s Schema) error {
			g, ok := s.(Granter)
			switch {
			case !ok:
				return withCode(ExitUsage, "this store has no roles that the command knows: see the page of its database")
			case cmp.Or(roles.Producer, roles.Canceller, roles.Relay, roles.Consumer, roles.Operator) == "":
				return withCode(ExitUsage, "name at least one role: --producer, --canceller, --relay, --consumer or --operator")
			case roles.Producer == "" && roles.Canceller == "" && len(roles.Routes)+len(roles.Sources) > 0:
				return withCode(ExitUsage, "--route and --source bind a producer or a canceller: name it with --producer or --canceller")
			}
			sql := g.Grants(roles)
			return c.printSQL(sql)
		}),
	}
	for _, f := range []struct {
		role        *string
		name, usage string
	}{
		{&roles.Producer, "producer", "role of programs that stage"},
		{&roles.Canceller, "canceller", "role of programs that stage, cancel and replace"},
		{&roles.Relay, "relay", "role of relays, the command's among them"},
		{&roles.Consumer, "consumer", "role of consumers with the inbox"},
		{&roles.Operator, "operator", "role of people who inspect, redrive and purge"},
	} {
		cmd.Flags().StringVar(f.role, f.name, "", f.usage)
	}
	cmd.Flags().StringArrayVar(&roles.Routes, "route", nil, "route that the producer and the canceller may use; repeatable, all if there is none")
	cmd.Flags().StringArrayVar(&roles.Sources, "source", nil, "source of the messages that the producer and the canceller may stage and cancel; repeatable, all if there is none")
	return cmd
}

// printSQL shows statements.
func (c *command) printSQL(sql string) error {
	if c.json {
		return c.writeJSON(struct {
			SQL string `json:"sql"`
		}{sql})
	}
	say(c.io.Out, "%s", sql)
	return nil
}

// wayBack describes the effects of going back to a version. It refuses to lose messages or marks unless forced.
func (c *command) wayBack(ctx context.Context, s Schema, to int, force bool) (string, error) {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	parts, err := s.Status(ctx)
	if err != nil {
		return "", err
	}
	have, newest := 0, 0
	for _, p := range parts {
		have, newest = max(have, p.Applied), max(newest, p.Newest)
	}
	if to > newest {
		return "", withCode(ExitUsage, "--to: there is no version %d: the newest is %d, the database has %d", to, newest, have)
	}
	if to >= have {
		return "", withCode(ExitUsage, "--to: the schema has version %d: there is nothing to undo", have)
	}
	losses, err := s.Losses(ctx, to)
	if err != nil {
		return "", err
	}
	what := fmt.Sprintf("take the schema back from version %d to %d", have, to)
	if to == 0 {
		what = "delete all tables of Waybill, with every message and mark in them"
	}
	lost, steps := false, []string{what}
	for _, l := range losses {
		more := map[bool]string{true: "more than "}[l.More]
		steps = append(steps, fmt.Sprintf("drop table %s with %s%s in it", l.Table, more, counted(l.Rows, l.Holds)))
		lost = lost || l.Rows > 0
	}
	what = strings.Join(steps, "; ")
	if lost && !force {
		return "", withCode(ExitRefused, "%s: nothing was changed: drain the outbox first (waybill status --wait-empty), or repeat it with --force", what)
	}
	return what, nil
}

// alive asks the database something, so that one that is down is noticed within the time for one question.
func (c *command) alive(ctx context.Context, s Schema) error {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	_, err := s.Status(ctx)
	return err
}

// schemaStatus shows the versions, and with drift what differs from them.
func (c *command) schemaStatus(ctx context.Context, s Schema, drift bool) error {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	parts, err := s.Status(ctx)
	if err != nil {
		return err
	}
	behind := 0
	rows := make([][]string, 0, len(parts))
	for _, p := range parts {
		state := "up to date"
		switch {
		case p.Applied < p.Newest:
			behind++
			state = "run waybill migrate up"
		case p.Applied > p.Newest:
			state = "made by a newer program"
		}
		rows = append(rows, []string{p.Part, strconv.Itoa(p.Applied), strconv.Itoa(p.Newest), state})
	}
	out := struct {
		Parts       []SchemaStatus   `json:"parts"`
		Differences []differenceJSON `json:"differences,omitempty"`
	}{Parts: parts}
	if drift && behind == 0 {
		found, err := s.Drift(ctx)
		if err != nil {
			return err
		}
		out.Differences = differences(found)
	}
	if c.json {
		err = c.writeJSON(out)
	} else if err = c.table([]string{"PART", "APPLIED", "NEWEST", ""}, rows); err == nil && len(parts) > 1 {
		say(c.io.Out, "the parts share one series of versions: waybill migrate down undoes each migration above --to\n")
	}
	if err == nil && !c.json && len(out.Differences) > 0 {
		say(c.io.Out, "\n")
		err = c.differenceTable(out.Differences)
	}
	switch {
	case err != nil:
		return err
	case drift && behind > 0:
		return withCode(ExitFindings, "the schema is missing or old: run waybill migrate up")
	case len(out.Differences) > 0:
		return withCode(ExitFindings, "the schema has %s", counted(len(out.Differences), "difference"))
	}
	return nil
}
