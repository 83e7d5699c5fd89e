package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

func (c *command) purgeCommand() *cobra.Command {
	var store string
	var f filterFlags
	var req admin.PurgeRequest
	var due bool
	cmd := &cobra.Command{
		Use: "purge", Short: "delete records for good", Args: cobra.NoArgs,
		Long: `purge deletes records that ended: published, abandoned and cancelled ones that the store keeps. With --waiting it also
deletes those that are scheduled or wait for a retry; they are never sent then. Records that are due or being sent stay;
exit code 4 says that there were such. With --due it deletes those as well, in any state: first they are ended, see
waybill cancel --due. It asks first. Published messages are at the broker and its consumers, which purge does not reach.`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, _ []string) error {
			var err error
			if req.Filter, err = f.filter(); err != nil {
				return err
			}
			if req.Filter.IsZero() && !req.All {
				return withCode(ExitUsage, "name records with --tenant, --key, --id, --topic, --route, --state, --reason, --since or --until, or give --all")
			}
			if due {
				return c.purgeDue(ctx, s, req)
			}
			purger, err := able[admin.Purger](s.Outbox, "store", "delete records")
			if err != nil {
				return err
			}
			return c.purge(ctx, purger, req, "deleted")
		}),
	}
	storeFlag(cmd, &store)
	f.add(cmd, false)
	c.progressFlag(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&req.All, "all", false, "all records are meant")
	fl.BoolVar(&req.Waiting, "waiting", false, "also those that are scheduled or wait for a retry")
	fl.BoolVar(&due, "due", false, dueHelp)
	fl.BoolVar(&req.DryRun, "dry-run", false, "count, and change nothing")
	return cmd
}

// purge asks, deletes the records that req selects, and shows the result. done is the participle for it, such as
// "deleted".
func (c *command) purge(ctx context.Context, purger admin.Purger, req admin.PurgeRequest, done string) error {
	req.Page.Limit, req.Page.Budget = admin.MaxPageLimit, defaultScan
	if !req.DryRun {
		if err := c.confirmPurge(ctx, purger, req, done); err != nil {
			return err
		}
	}
	show := c.newProgress().dryRun(req.DryRun)
	matched, deleted := 0, 0
	err := c.act(ctx, req.DryRun, func(ctx context.Context) error {
		err := c.eachStep(ctx, func(ctx context.Context, after int64) (int64, error) {
			req.Page.After = after
			sum, err := purger.PurgeRecords(ctx, req)
			matched, deleted = matched+sum.Matched, deleted+sum.Deleted
			show.at(done, int64(deleted), 0)
			return sum.Next, err
		})
		c.note("%d of %d %s", deleted, matched, done)
		return err
	})
	show.end()
	if err != nil {
		if deleted > 0 {
			say(c.io.Err, "%s were %s before the error\n", records(deleted), done)
		}
		return err
	}
	stay := matched - deleted
	if c.json {
		err = c.writeJSON(struct {
			Matched int  `json:"matched"`
			Deleted int  `json:"deleted"`
			Stay    int  `json:"stay"`
			DryRun  bool `json:"dry_run,omitempty"`
		}{matched, deleted, stay, req.DryRun})
	} else {
		would := map[bool]string{true: "would be "}
		say(c.io.Out, "%s of %s %s%s\n", grouped(int64(deleted)), records(matched), would[req.DryRun], done)
	}
	switch {
	case err != nil:
		return err
	case matched == 0 && len(req.Filter.IDs) > 0:
		return withCode(ExitNotFound, "no record has id %s", strings.Join(req.Filter.IDs, ", "))
	case stay > 0 && req.Waiting:
		return withCode(ExitRefused, "left alone: %s: due, being sent, or locked: repeat it later", records(stay))
	case stay > 0:
		return withCode(ExitRefused, "left alone: %s: not ended (see --waiting), or locked", records(stay))
	}
	return nil
}

// confirmPurge tells how many records are concerned, as far as one step shows, and asks.
func (c *command) confirmPurge(ctx context.Context, purger admin.Purger, req admin.PurgeRequest, done string) error {
	asked, cancel := c.limited(ctx)
	defer cancel()
	req.DryRun = true
	first, err := purger.PurgeRecords(asked, req)
	if err != nil {
		return err
	}
	if first.Deleted == 0 && first.Next == 0 {
		return nil // nothing would be destroyed
	}
	n := records(first.Deleted)
	if first.Next != 0 {
		n = "at least " + n
	}
	if done == "cancelled" {
		return c.confirm(ctx, "cancel %s, which are never sent then", n)
	}
	return c.confirm(ctx, "delete %s for good", n)
}

// waitingStates are those that cancel takes.
func waitingStates() []core.State { return []core.State{core.StatePending, core.StateFailed} }
