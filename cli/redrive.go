package cli

import (
	"cmp"
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

func (c *command) redriveCommand() *cobra.Command {
	var store, body string
	var f filterFlags
	var req admin.RedriveRequest
	var rate float64
	cmd := &cobra.Command{
		Use: "redrive", Short: "put failed and abandoned records back, to be sent again", Args: cobra.NoArgs,
		Long: `redrive puts failed and abandoned records back to pending, with attempts and crashes reset. It refuses those that need
--force: expired ones, those older than --inbox-retention, and those after which messages of their key can have been
sent. With --all and with --force it asks first. Exit code 4 says that some were refused.`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, _ []string) error {
			var err error
			if req.Filter, err = f.filter(); err != nil {
				return err
			}
			if req.Filter.IsZero() && !req.All {
				return withCode(ExitUsage, "name records with --id, --reason, --topic, --route, --key, --tenant, --since or --until, or give --all")
			}
			if body != "" {
				if req.Body, err = readBody(body); err != nil {
					return err
				}
			}
			redriver, err := able[admin.Redriver](s.Outbox, "store", "put records back")
			if err != nil {
				return err
			}
			req.BlockAfterAbandon = c.conf.blocks(store, req.Filter.Routes)
			req.Page.Limit, req.Page.Budget = admin.MaxPageLimit, defaultScan
			if (req.All || req.Force) && !req.DryRun {
				if err := c.confirm(ctx, "put back every failed and abandoned record that the flags select"); err != nil {
					return err
				}
			}
			if body != "" {
				c.acts.entry.IDs = req.Filter.IDs
				c.acts.entry.Body(c.storedBody(ctx, s, &req.Filter), req.Body)
			}
			return c.redrive(ctx, redriver, req, rate)
		}),
	}
	storeFlag(cmd, &store)
	f.add(cmd, false)
	c.progressFlag(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&req.All, "all", false, "all failed and abandoned records are meant")
	fl.BoolVar(&req.DryRun, "dry-run", false, "count, and change nothing")
	fl.BoolVar(&req.Force, "force", false, "also those that are refused without it; an expiry is removed")
	fl.Float64Var(&rate, "rate", 0, "records a second at most; 0 = no bound")
	fl.StringVar(&body, "body-file", "", "file with a new body, for one --route and one --id")
	fl.DurationVar(&req.InboxRetention, "inbox-retention", 0, "how long the consumers' inboxes remember; older records need --force; 0 = not checked")
	return cmd
}

// storedBody returns the body of the record that one route and one id name; nil if there is none.
func (c *command) storedBody(ctx context.Context, s *Store, f *admin.Filter) []byte {
	inspector, ok := core.As[admin.Inspector](s.Outbox)
	if !ok || len(f.Routes) != 1 || len(f.IDs) != 1 {
		return nil
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	stored, err := inspector.Inspect(ctx, f.Routes[0], f.IDs[0])
	if err != nil {
		return nil // redrive meets the same error
	}
	return stored.Envelope.Body
}

// redrive does it and shows the result.
func (c *command) redrive(ctx context.Context, redriver admin.Redriver, req admin.RedriveRequest, rate float64) error {
	show := c.newProgress().dryRun(req.DryRun)
	var sum admin.Redriven
	err := c.act(ctx, req.DryRun, func(ctx context.Context) (err error) {
		sum, err = admin.RedriveAll(ctx, limitedRedriver{c, redriver}, req, admin.RedriveOptions{
			PerSecond: rate, Progress: func(sum admin.Redriven) { show.at("put back", int64(sum.Changed), 0) },
		})
		c.note("%d of %d put back", sum.Changed, sum.Matched)
		return err
	})
	show.end()
	if err != nil {
		if sum.Changed > 0 {
			say(c.io.Err, "%s were put back before the error\n", records(sum.Changed))
		}
		return err
	}
	refused := 0
	for _, n := range sum.Refused {
		refused += n
	}
	if c.json {
		err = c.writeJSON(struct {
			Matched int            `json:"matched"`
			Changed int            `json:"changed"`
			Refused map[string]int `json:"refused,omitempty"`
			DryRun  bool           `json:"dry_run,omitempty"`
		}{sum.Matched, sum.Changed, sum.Refused, req.DryRun})
	} else {
		say(c.io.Out, "%s of %s %s\n", grouped(int64(sum.Changed)), records(sum.Matched), map[bool]string{false: "put back", true: "would be put back"}[req.DryRun])
		for _, cause := range sortedKeys(sum.Refused) {
			say(c.io.Out, "%s refused: %s\n", grouped(int64(sum.Refused[cause])), refusals[cause])
		}
	}
	switch {
	case err != nil:
		return err
	case sum.Matched == 0 && len(req.Filter.IDs) > 0:
		return withCode(ExitNotFound, "no failed or abandoned record has id %s", strings.Join(req.Filter.IDs, ", "))
	case refused > 0:
		return withCode(ExitRefused, "%s refused", records(refused))
	}
	return nil
}

// refusals have the cause of each refusal, and the cure.
var refusals = map[string]string{
	admin.RefusedExpired:        "expired: --force removes the expiry",
	admin.RefusedInboxRetention: "older than the inboxes remember, so that they could have their effect twice: --force does it anyway",
	admin.RefusedOrder:          "later messages of their key can have been sent: --force does it anyway, out of order",
	admin.RefusedDuplicate:      "a live message has their dedupe key: cancel that one first",
}

// limitedRedriver bounds each step.
type limitedRedriver struct {
	c  *command
	to admin.Redriver
}

func (r limitedRedriver) Redrive(ctx context.Context, req admin.RedriveRequest) (admin.Redriven, error) {
	ctx, cancel := r.c.limited(ctx)
	defer cancel()
	return r.to.Redrive(ctx, req)
}

// readBody reads a file that holds a body.
func readBody(path string) ([]byte, error) {
	body, err := os.ReadFile(path) //nolint:gosec // the user names it
	if err != nil {
		return nil, withCode(ExitUsage, "--body-file: %w", err)
	}
	return append([]byte{}, body...), nil
}

// blocks reports whether each of these routes of a store is served with block_after_abandon, as the configuration says.
func (l *loaded) blocks(store string, routes []string) bool {
	blocking := map[string]bool{}
	for _, name := range sortedKeys(l.Relays) {
		r := l.Relays[name]
		if r.Store != store && r.Store != "" && store != "" {
			continue
		}
		for i := range r.Routes {
			route := r.Routes[i].Name
			route = cmp.Or(route, waybill.DefaultRoute)
			blocking[route] = r.Routes[i].BlockAfterAbandon
		}
	}
	for _, route := range routes {
		if !blocking[waybill.BaseRoute(route)] {
			return false
		}
	}
	return len(routes) > 0
}

// eachStep calls fn for one step after another of a walk over records, until the end.
func (c *command) eachStep(ctx context.Context, fn func(ctx context.Context, after int64) (next int64, err error)) error {
	for after := int64(0); ; {
		asked, cancel := c.limited(ctx)
		next, err := fn(asked, after)
		cancel()
		if err != nil || next == 0 {
			return err
		}
		after = next
	}
}
