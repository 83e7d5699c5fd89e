package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

func (c *command) showCommand() *cobra.Command {
	var store string
	var budget int
	var body bodyFlags
	cmd := &cobra.Command{
		Use: "show [ROUTE] ID", Short: "show one message with its body", Args: cobra.RangeArgs(1, 2),
		Long: `show shows the record of a message on a route, or on every route, with its headers and its body. A body that is no
text is shown in hexadecimal. Control characters are shown as escapes; --body-to writes the body as it is.

An id that the application chose is found by an index, and so is one of a record that failed, is scheduled or was given
up. Any other one is looked for among --scan rows at a time.`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, args []string) error {
			p := problems{}
			p.between("--scan", budget, 1, admin.MaxPageBudget)
			body.check(&p)
			if err := p.err(); err != nil {
				return err
			}
			inspector, err := able[admin.Inspector](s.Outbox, "store", "show its records")
			if err != nil {
				return err
			}
			id := args[len(args)-1]
			routes := args[:len(args)-1]
			if len(routes) == 0 {
				if routes, err = c.routesOf(ctx, inspector, s, id, budget); err != nil {
					return err
				}
			}
			found := make([]admin.Stored, 0, len(routes))
			for _, route := range routes {
				ctx, cancel := c.limited(ctx)
				r, err := inspector.Inspect(ctx, route, id)
				cancel()
				if err != nil {
					return err
				}
				found = append(found, r)
			}
			return c.showRecords(found, &body)
		}),
	}
	storeFlag(cmd, &store)
	body.add(cmd)
	scanFlag(cmd, &budget)
	return cmd
}

// routesOf returns the routes that have a record of id.
func (c *command) routesOf(ctx context.Context, inspector admin.Inspector, s *Store, id string, budget int) ([]string, error) {
	var routes []string
	page := admin.PageRequest{Limit: admin.MaxPageLimit, Budget: budget}
	for {
		asked, cancel := c.limited(ctx)
		found, err := inspector.List(asked, admin.Filter{IDs: []string{id}}, page)
		cancel()
		if err != nil {
			return nil, err
		}
		for i := range found.Records {
			routes = append(routes, found.Records[i].Route)
		}
		if page.After = found.Next; page.After == 0 {
			break
		}
	}
	if len(routes) == 0 {
		return nil, withCode(ExitNotFound, "no route has message %q: it was never staged in this store, or was published and deleted", id)
	}
	return routes, nil
}

func (c *command) showRecords(found []admin.Stored, body *bodyFlags) error {
	if body.to != "" {
		if len(found) > 1 {
			return withCode(ExitUsage, "--body-to: the message is on routes %s: name one before the id", routeNames(found))
		}
		if err := body.write(found[0].Envelope.Body); err != nil {
			return err
		}
	}
	if c.json {
		out := make([]recordJSON, 0, len(found))
		for i := range found {
			out = append(out, recordOf(&found[i]))
		}
		return c.writeJSON(struct {
			Records []recordJSON `json:"records"`
		}{out})
	}
	for i := range found {
		if i > 0 {
			say(c.io.Out, "\n")
		}
		r := &found[i]
		fields := []fieldText{
			{"route", r.Route},
			{"sequence", fmt.Sprint(r.Seq)},
			{"state", stateOf(r)},
			{"attempts", positive(r.Attempts)},
			{"crashes", positive(r.Crashes)},
			{"dedupe key", r.DedupeKey},
			{"age", ago(r.Age)},
			{"owner", r.Owner},
			{"lease", positiveTime(r)},
			{"error", r.LastError},
			{"error at", stamp(r.LastErrorAt)},
			{"settled at", stamp(r.SettledAt)},
			{"unreadable", errorOf(r.Err)},
		}
		if err := c.showFields(append(fields, messageFields(&r.Envelope)...)); err != nil {
			return err
		}
		c.showBody(r.Envelope.Body, body)
	}
	return nil
}

func routeNames(found []admin.Stored) string {
	var names []string
	for i := range found {
		names = append(names, found[i].Route)
	}
	return strings.Join(names, ", ")
}

func positive(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func positiveTime(r *admin.Stored) string {
	if r.State != core.StateProcessing || r.LeaseIn <= 0 {
		return ""
	}
	return ago(r.LeaseIn) + " left"
}

func errorOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// bodyFlags say what becomes of a body.
type bodyFlags struct {
	to   string
	most int
}

func (b *bodyFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.to, "body-to", "", "write the body to this new file, as it is")
	cmd.Flags().IntVar(&b.most, "body-bytes", 16<<10, "bytes of the body to show, at most 16777216; 0 = none")
}

func (b *bodyFlags) check(p *problems) { p.between("--body-bytes", b.most, 0, 16<<20) }

// write makes the file. It overwrites none.
func (b *bodyFlags) write(body []byte) error {
	f, err := os.OpenFile(b.to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return withCode(ExitFailed, "--body-to: %w", err)
	}
	_, err = f.Write(body)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return withCode(ExitFailed, "--body-to: %w", err)
	}
	return nil
}
