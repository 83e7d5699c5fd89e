package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin/importer"
)

func (c *command) importCommand() *cobra.Command {
	var store string
	var req importer.Request
	var columns []string
	var show bool
	cmd := &cobra.Command{
		Use: "import --from SYSTEM --source SOURCE", Short: "move the rows of another system's table into the outbox", Args: cobra.NoArgs,
		Long: `import moves the unsent rows of another system's table into the outbox of the same database: see docs/migrating.md. The
systems are sqlalchemy, faststream, faststream-dlq, forze, protean, watermill, watermill-queue, river, go-outbox and
debezium. Stop the old relay first, unless docs/migrating.md says that it may run.

A batch is one statement, which deletes the old rows and inserts the new ones in the old order. A command that is killed
has lost nothing: run it again. It begins with a dry run of the first batch. --print shows the statement, --column
replaces the expression of a column, in which the old row is called old:

  waybill import --dry-run --from=faststream --source=/orders --column="topic='mails.send'"`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, _ []string) error {
			im, err := able[importer.Importer](s.Outbox, "store", "import rows of another system")
			if err != nil {
				return err
			}
			req.Columns = map[string]string{}
			for _, text := range columns {
				name, expression, ok := strings.Cut(text, "=")
				if !ok {
					return withCode(ExitUsage, "--column: %q has no =: write NAME=EXPRESSION", text)
				}
				req.Columns[name] = expression
			}
			if show {
				sql, err := im.ImportSQL(req)
				if err != nil {
					return err
				}
				return c.printSQL(sql + ";\n")
			}
			return c.importRows(ctx, im, req)
		}),
	}
	storeFlag(cmd, &store)
	c.progressFlag(cmd)
	fl := cmd.Flags()
	fl.StringVar(&req.From, "from", "", "the system, such as river; the text above lists them")
	fl.StringVar(&req.Table, "table", "", "the old table, as table or schema.table; the system's own name if empty")
	fl.StringVar(&req.Source, "source", "", "CloudEvents source of the messages")
	fl.StringVar(&req.Where, "where", "", "SQL condition of the rows that move, instead of the system's own")
	fl.StringArrayVar(&columns, "column", nil, "column of the outbox as NAME=EXPRESSION; repeatable")
	fl.IntVar(&req.Limit, "batch", importer.DefaultLimit, "rows of one transaction")
	fl.BoolVar(&req.DryRun, "dry-run", false, "count, try the first batch, and change nothing")
	fl.BoolVar(&show, "print", false, "print the statement, and do not run it")
	return cmd
}

// importRows tries the first batch, and moves all rows unless that is all that is asked for.
func (c *command) importRows(ctx context.Context, im importer.Importer, req importer.Request) error {
	dry := req.DryRun
	req.DryRun = true
	first, err := im.Import(ctx, req)
	if err != nil {
		return err
	}
	req.DryRun = false
	moved := int64(0)
	show := c.newProgress()
	if !dry {
		err = c.act(ctx, false, func(ctx context.Context) error {
			for {
				batch, err := im.Import(ctx, req)
				moved += batch.Moved
				c.note("%d moved", moved)
				show.at("moved", moved, max(first.Left, moved))
				if err != nil || batch.Moved == 0 {
					return err
				}
			}
		})
	}
	show.end()
	if err != nil {
		if moved > 0 {
			say(c.io.Err, "%s were moved before the error: run it again\n", counted(int(moved), "row"))
		}
		return err
	}
	if c.json {
		return c.writeJSON(struct {
			Moved  int64 `json:"moved"`
			Found  int64 `json:"found"`
			DryRun bool  `json:"dry_run,omitempty"`
		}{moved, first.Left, dry})
	}
	if dry {
		say(c.io.Out, "%s would be moved; the first %s fit\n", counted(int(first.Left), "row"), grouped(first.Moved))
		return nil
	}
	say(c.io.Out, "%s moved\n", counted(int(moved), "row"))
	return nil
}
