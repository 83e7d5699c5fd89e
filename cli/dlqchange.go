package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
)

// maxTold is how many messages that stay parked are told one by one.
const maxTold = 20

// changeFlags are those of replay and purge.
type changeFlags struct {
	all, dryRun bool
	limit       int
	rate        float64
}

func (d *dlq) changeFlags(cmd *cobra.Command, f *changeFlags) {
	d.filterFlags(cmd)
	d.c.progressFlag(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "all parked messages are meant")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "count, and change nothing")
	cmd.Flags().IntVar(&f.limit, "limit", 0, "messages at most; 0 = no bound")
	cmd.Flags().Float64Var(&f.rate, "rate", 0, "messages a second at most; 0 = no bound")
}

func (d *dlq) replayCommand() *cobra.Command {
	var flags changeFlags
	cmd := &cobra.Command{
		Use: "replay QUEUE", Short: "put parked messages back into their queue, as first attempts", Args: cobra.ExactArgs(1),
		Long: `replay puts parked messages back into the queue from which they were parked. Expired ones stay parked. Exit code 4 says
that some could not be put back; each is told with its error.`,
		RunE: d.onQueue(func(ctx context.Context, q *parkedQueue, _ []string) error {
			return d.change(ctx, q, &flags, "replayed", q.ReplayParked)
		}),
	}
	d.changeFlags(cmd, &flags)
	return cmd
}

func (d *dlq) purgeCommand() *cobra.Command {
	var flags changeFlags
	cmd := &cobra.Command{
		Use: "purge QUEUE", Short: "delete parked messages for good", Args: cobra.ExactArgs(1),
		RunE: d.onQueue(func(ctx context.Context, q *parkedQueue, _ []string) error {
			return d.change(ctx, q, &flags, "deleted", q.PurgeParked)
		}),
	}
	d.changeFlags(cmd, &flags)
	return cmd
}

// change replays or deletes the messages that the flags select.
func (d *dlq) change(
	ctx context.Context, q *parkedQueue, flags *changeFlags, done string, do func(context.Context, admin.ParkedRequest) (int, error),
) error {
	f, err := d.filter()
	if err != nil {
		return err
	}
	if f.IsZero() && !flags.all {
		return withCode(ExitUsage, "name messages with --id, --topic, --reason, --key, --tenant, --error, --since, --until or --position, or give --all")
	}
	p := problems{}
	p.between("--limit", flags.limit, 0, 1<<40)
	if err := p.err(); err != nil {
		return err
	}
	if flags.dryRun {
		return d.dryRun(ctx, q, f, flags.limit, done)
	}
	if done == "deleted" {
		if err := d.c.confirm(ctx, "delete for good what matches of %s in queue %s", counted(q.depth, "parked message"), q.name); err != nil {
			return err
		}
	}
	return d.run(ctx, admin.ParkedRequest{Queue: q.name, Filter: f, All: flags.all, Limit: flags.limit, PerSecond: flags.rate}, done, do)
}

func (d *dlq) dryRun(ctx context.Context, q *parkedQueue, f admin.ParkedFilter, limit int, done string) error {
	most := max(q.depth, 1)
	if limit > 0 {
		most = min(most, limit)
	}
	found, err := q.ListParked(ctx, q.name, f, most)
	if err != nil {
		return err
	}
	return d.told(&changedJSON{Changed: len(found), DryRun: true}, "would be "+done)
}

// changedJSON is the result of a change as programs get it.
type changedJSON struct {
	Changed int          `json:"changed"`
	Failed  []failedJSON `json:"failed,omitempty"`
	DryRun  bool         `json:"dry_run,omitempty"`
}

type failedJSON struct {
	ID       string `json:"id"`
	Position int    `json:"position"`
	Error    string `json:"error"`
}

// run does it, and tells what became of the messages.
func (d *dlq) run(ctx context.Context, req admin.ParkedRequest, done string, do func(context.Context, admin.ParkedRequest) (int, error)) error {
	show := d.c.newProgress()
	var out changedJSON
	failed := 0
	req.Progress = func(looked, total int) { show.at("looked at", int64(looked), int64(total)) }
	req.Result = func(p admin.Parked, err error) {
		if err == nil {
			d.c.acts.entry.Add(p.Envelope.ID)
			return
		}
		if failed++; failed <= maxTold {
			out.Failed = append(out.Failed, failedJSON{p.Envelope.ID, p.Position, err.Error()})
		}
	}
	err := d.c.recordBeside(ctx, d.store)
	if err == nil {
		err = d.c.act(ctx, false, func(ctx context.Context) (err error) {
			out.Changed, err = do(ctx, req)
			d.c.note("%d %s, %d failed", out.Changed, done, failed)
			return err
		})
	}
	show.end()
	if err != nil {
		if out.Changed > 0 {
			say(d.c.io.Err, "%s were %s before the error\n", counted(out.Changed, "message"), done)
		}
		return err
	}
	if err := d.told(&out, done); err != nil {
		return err
	}
	switch {
	case failed > 0:
		return withCode(ExitRefused, "%s could not be %s and stay parked", counted(failed, "message"), done)
	case out.Changed == 0 && len(req.Filter.IDs)+len(req.Filter.Positions) > 0:
		return withCode(ExitNotFound, "queue %s has no parked message that matches and can be %s", req.Queue, done)
	}
	return nil
}

func (d *dlq) told(out *changedJSON, done string) error {
	if d.c.json {
		return d.c.writeJSON(out)
	}
	say(d.c.io.Out, "%s %s\n", counted(out.Changed, "message"), done)
	for _, f := range out.Failed {
		say(d.c.io.Out, "position %d, id %s: %s\n", f.Position, clean(f.ID), clean(f.Error))
	}
	return nil
}

func (d *dlq) editCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "edit QUEUE [ID] --body-file FILE", Short: "replay one parked message with another body", Args: cobra.RangeArgs(1, 2),
		Long: `edit replays the oldest parked message that matches, with the body of --body-file. dlq show --body-to writes the body that
it has.`,
		RunE: d.onQueue(func(ctx context.Context, q *parkedQueue, ids []string) error {
			f, err := d.filter()
			if err != nil {
				return err
			}
			f.IDs = append(f.IDs, ids...)
			if f.IsZero() || file == "" {
				return withCode(ExitUsage, "name a message, by its id or with --position, and give --body-file")
			}
			body, err := readBody(file)
			if err != nil {
				return err
			}
			p, err := d.inspect(ctx, q, f)
			if err != nil {
				return err
			}
			f.Positions = []int{p.Position}
			d.c.acts.entry.Body(p.Envelope.Body, body)
			edit := func(admin.Parked) ([]byte, error) { return body, nil }
			return d.run(ctx, admin.ParkedRequest{Queue: q.name, Filter: f, Limit: 1, Edit: edit}, "replayed", q.ReplayParked)
		}),
	}
	d.filterFlags(cmd)
	cmd.Flags().StringVar(&file, "body-file", "", "file with the new body")
	return cmd
}
