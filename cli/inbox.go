package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/core"
)

// inboxStep is how many marks are deleted in one transaction.
const inboxStep = 1000

func (c *command) inboxCommand() *cobra.Command {
	var store, consumer string
	var older time.Duration
	purge := &cobra.Command{
		Use: "purge --older AGE", Short: "delete old marks of an inbox", Args: cobra.NoArgs,
		Long: `purge deletes the marks of an inbox that are older than --older, by the database's clock. A message that comes again
after its mark was deleted has its effect again: take a longer time than any message can be under way. It asks first.`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, _ []string) error {
			if older <= 0 {
				return withCode(ExitUsage, "--older: say how old the marks must be, such as 720h")
			}
			if s.Inbox == nil {
				return withCode(ExitUsage, "this store has no inbox")
			}
			purger, err := able[core.InboxPurger](s.Inbox, "inbox", "delete marks")
			if err != nil {
				return err
			}
			whose := "consumer " + consumer
			if consumer == "" {
				whose = "every consumer"
			}
			if err := c.confirm(ctx, "delete the marks of %s that are older than %s", whose, older); err != nil {
				return err
			}
			show := c.newProgress()
			sum := 0
			err = c.act(ctx, false, func(ctx context.Context) error {
				err := c.eachStep(ctx, func(ctx context.Context, _ int64) (int64, error) {
					n, err := purger.PurgeInbox(ctx, consumer, older, inboxStep)
					sum += n
					show.at("deleted", int64(sum), 0)
					if n < inboxStep {
						return 0, err
					}
					return 1, err
				})
				c.note("%d deleted", sum)
				return err
			})
			show.end()
			if err != nil {
				return err
			}
			if c.json {
				return c.writeJSON(struct {
					Deleted int `json:"deleted"`
				}{sum})
			}
			say(c.io.Out, "%s deleted\n", counted(sum, "mark"))
			return nil
		}),
	}
	storeFlag(purge, &store)
	c.progressFlag(purge)
	purge.Flags().StringVar(&consumer, "consumer", "", "only the marks of this consumer")
	purge.Flags().DurationVar(&older, "older", 0, "age, such as 720h")
	return group("inbox", "look after the inbox of a store", purge)
}
