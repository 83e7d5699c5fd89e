package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

func (c *command) showCommand() *cobra.Command {
	var store string
	var body bodyFlags
	cmd := &cobra.Command{
		Use: "show [ROUTE] ID", Short: "show one message with its body", Args: cobra.RangeArgs(1, 2),
		Long: `show shows the record of a message on a route, or on the routes on which it finds one, with its headers and its body. A
body that is no text is shown in hexadecimal. Control characters are shown as escapes; --body-to writes the body as it is.

"waits" says why a message is not out: its time, a retry, the message before it in its key, a topic that no queue is bound
for, a transaction that has locked it, or a route without a relay. A store does not know everything that stops a relay: the
relay's health names the rest, such as a breaker that is open for one topic.

An id that the application chose is found by an index, and so is one of a record that failed, is scheduled or was given
up. For any other one the store goes through all that is due, which takes about a second for two million records.`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, args []string) error {
			p := problems{}
			body.check(&p)
			if err := p.err(); err != nil {
				return err
			}
			inspector, err := able[admin.Inspector](s.Outbox, "store", "show its records")
			if err != nil {
				return err
			}
			id := args[len(args)-1]
			var found []admin.Stored
			if len(args) == 2 {
				found, err = c.inspect(ctx, inspector, id, args[0])
			} else {
				found, err = c.find(ctx, inspector, s, id)
			}
			if err != nil {
				return err
			}
			if len(found) == 0 {
				return notThere(id)
			}
			waits := make([]*waitJSON, len(found))
			for i := range found {
				waits[i] = c.why(ctx, s.Outbox, store, &found[i])
			}
			return c.showRecords(found, waits, &body)
		}),
	}
	storeFlag(cmd, &store)
	body.add(cmd)
	return cmd
}

func notThere(id string) error {
	return withCode(ExitNotFound, "there is no message %q: it was never staged in this store (or not on this route), or was published and deleted", id)
}

// inspect returns the records of id on routes.
func (c *command) inspect(ctx context.Context, inspector admin.Inspector, id string, routes ...string) (found []admin.Stored, err error) {
	for _, route := range routes {
		asked, cancel := c.limited(ctx)
		r, err := inspector.Inspect(asked, route, id)
		cancel()
		switch {
		case err == nil:
			found = append(found, r)
		case !errors.Is(err, waybill.ErrNotFound):
			return nil, err
		}
	}
	return found, nil
}

// find returns the records of id. A store may not find by its indexes what is simply due: then every route is asked.
func (c *command) find(ctx context.Context, inspector admin.Inspector, s *Store, id string) ([]admin.Stored, error) {
	asked, cancel := c.limited(ctx)
	listed, err := inspector.List(asked, admin.Filter{IDs: []string{id}}, admin.PageRequest{Limit: admin.MaxPageLimit, Budget: defaultScan})
	cancel()
	if err != nil {
		return nil, err
	}
	var routes []string
	for i := range listed.Records {
		routes = append(routes, listed.Records[i].Route)
	}
	if counter, ok := core.As[admin.Counter](s.Outbox); ok && len(routes) == 0 {
		counts, err := c.counts(ctx, counter, nil)
		if err != nil {
			return nil, err
		}
		for i := range counts {
			if !slices.Contains(routes, counts[i].Route) {
				routes = append(routes, counts[i].Route)
			}
		}
	}
	return c.inspect(ctx, inspector, id, routes...)
}

func (c *command) showRecords(found []admin.Stored, waits []*waitJSON, body *bodyFlags) error {
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
			r := recordOf(&found[i])
			r.Waits = waits[i]
			out = append(out, r)
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
			{"sequence", strconv.FormatInt(r.Seq, 10)},
			{"state", stateOf(r)},
			{"waits", waits[i].text()},
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
	return strconv.Itoa(n)
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

// bodyFlags choose how a body is shown.
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
