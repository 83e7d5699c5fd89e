package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/check"
)

// defaultScan is how many rows a command looks at for one page. That takes well below a second.
const defaultScan = 20_000

func (c *command) listCommand() *cobra.Command {
	var store string
	var f filterFlags
	page := admin.PageRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "list stored records that the flags select", Args: cobra.NoArgs,
		Long: `list shows stored records in staging order, without bodies. Several values of one flag are alternatives. It looks at
--scan rows at most, so that it answers soon; if there may be more, it says with which --after to go on. If nothing
matches, it names the routes that no relay of the configuration serves, and the topics of which the store has no message.`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, _ []string) error {
			filter, err := f.filter()
			if err != nil {
				return err
			}
			if err := checkPage(&page); err != nil {
				return err
			}
			inspector, err := able[admin.Inspector](s.Outbox, "store", "list its records")
			if err != nil {
				return err
			}
			ctx, cancel := c.limited(ctx)
			defer cancel()
			found, err := inspector.List(ctx, filter, page)
			if err != nil {
				return err
			}
			if err := c.showListing(&found); err != nil || c.json || len(found.Records) > 0 || found.Next != 0 {
				return err
			}
			for _, route := range filter.Routes {
				c.unserved(route)
			}
			return c.unknownTopics(ctx, inspector, &filter, page)
		}),
	}
	storeFlag(cmd, &store)
	f.add(cmd, false)
	cmd.Flags().IntVar(&page.Limit, "limit", 50, "records to show, at most 1000")
	cmd.Flags().Int64Var(&page.After, "after", 0, "go on after this sequence")
	cmd.Flags().IntVar(&page.Budget, "scan", defaultScan, "rows to look at, at most 1000000")
	return cmd
}

func checkPage(page *admin.PageRequest) error {
	var p problems
	p.between("--limit", page.Limit, 1, admin.MaxPageLimit)
	p.between("--scan", page.Budget, 1, admin.MaxPageBudget)
	if page.After < 0 {
		p.add("--after: %d is negative", page.After)
	}
	return p.err()
}

func (c *command) showListing(found *admin.Listing) error {
	if c.json {
		out := struct {
			Records []recordJSON `json:"records"`
			Next    int64        `json:"next,omitempty"`
		}{Records: make([]recordJSON, 0, len(found.Records)), Next: found.Next}
		for i := range found.Records {
			out.Records = append(out.Records, recordOf(&found.Records[i]))
		}
		return c.writeJSON(out)
	}
	rows := make([][]string, 0, len(found.Records))
	for i := range found.Records {
		r := &found.Records[i]
		e := &r.Envelope
		rows = append(rows, []string{
			strconv.FormatInt(r.Seq, 10), r.Route, stateOf(r), e.Topic, check.Clip(e.Key, 40), e.ID, ago(r.Age), strconv.Itoa(r.Attempts), oneLine(r.LastError),
		})
	}
	if len(rows) > 0 {
		if err := c.table([]string{"SEQ", "ROUTE", "STATE", "TOPIC", "KEY", "ID", "AGE", "ATTEMPTS", "ERROR"}, rows); err != nil {
			return err
		}
	}
	switch {
	case found.Next != 0:
		say(c.io.Out, "searched to %d; go on with --after %d\n", found.Next, found.Next)
	case len(rows) == 0:
		say(c.io.Out, "no record matches\n")
	}
	return nil
}

// unknownTopics names the topics of a filter that matched nothing, of which the store has no message at all. It asks
// one bounded question about each topic, and says nothing of a topic if the bound was reached.
func (c *command) unknownTopics(ctx context.Context, inspector admin.Inspector, f *admin.Filter, page admin.PageRequest) error {
	for _, topic := range f.Topics {
		found, err := inspector.List(ctx, admin.Filter{Topics: []string{topic}}, admin.PageRequest{Limit: 1, Budget: page.Budget})
		if err != nil {
			return err
		}
		if len(found.Records) == 0 && found.Next == 0 {
			say(c.io.Err, "the store has no message of topic %s: all are published, or its name is wrong\n", clean(topic))
		}
	}
	return nil
}

// stateOf is a record's state for people, with its reason, or when it is due.
func stateOf(r *admin.Stored) string {
	switch {
	case r.Reason != "":
		return r.State.String() + ": " + string(r.Reason)
	case r.DueIn > 0:
		return r.State.String() + ", due in " + ago(r.DueIn)
	case r.Owner != "":
		return r.State.String() + " by " + r.Owner
	}
	return r.State.String()
}

// oneLine is the beginning of an error, for a table.
func oneLine(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	return check.Clip(first, 60)
}
