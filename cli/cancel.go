package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

func (c *command) cancelCommand() *cobra.Command {
	var store, dedupeKey string
	var f filterFlags
	var dryRun, due bool
	cmd := &cobra.Command{
		Use: "cancel [ID...]", Short: "cancel messages that were not sent yet", Args: cobra.ArbitraryArgs,
		Long: `cancel cancels messages before they are sent: by id, with --topic and --dedupe-key, or all that the flags select. With
ids it takes --route only; without --route it looks for them on all routes. A record of a message that was cancelled by
id is kept with reason cancelled, as long as the store's retention says.

By flags it takes messages that are scheduled or wait for a retry, and keeps no record of them. Those that are due stay;
exit code 4 says that there were such. With --due it ends all that match and are not sent yet, by id or by flags: the
relay that owns a message ends it within two heartbeats, unless it is being sent; if no relay runs, the command does. A
relay that was killed is waited for, until it is missed for its lease. They are kept with reason skipped.`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, ids []string) error {
			filter, err := f.filter()
			if err != nil {
				return err
			}
			switch {
			case len(ids) > 0 || dedupeKey != "":
				if filter.IDs = append(filter.IDs, ids...); due && dedupeKey == "" {
					return c.cancelDue(ctx, s, filter, dryRun)
				}
				return c.cancelNamed(ctx, s, &filter, dedupeKey, dryRun)
			case filter.IsZero():
				return withCode(ExitUsage, "name messages: ids, or --topic, --tenant, --key, --route, --since or --until")
			case len(filter.States) > 0 || len(filter.Reasons) > 0:
				return withCode(ExitUsage, "--state and --reason: cancel takes what waits for a time: leave them out, or see waybill purge")
			}
			if due {
				return c.cancelDue(ctx, s, filter, dryRun)
			}
			return c.cancelFiltered(ctx, s, filter, dryRun)
		}),
	}
	storeFlag(cmd, &store)
	f.add(cmd, false)
	for _, name := range []string{"state", "reason"} { // what has failed or ended is purged or redriven
		cmd.Flags().Lookup(name).Hidden = true
	}
	c.progressFlag(cmd)
	cmd.Flags().StringVar(&dedupeKey, "dedupe-key", "", "the message of one --topic, and of a --tenant if it has one, with this dedupe key")
	cmd.Flags().BoolVar(&due, "due", false, dueHelp)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "count, and change nothing")
	return cmd
}

// cancelFiltered cancels what f selects and waits for a time.
func (c *command) cancelFiltered(ctx context.Context, s *Store, f admin.Filter, dryRun bool) error {
	purger, err := able[admin.Purger](s.Outbox, "store", "cancel messages by flags")
	if err != nil {
		return err
	}
	f.States = waitingStates()
	return c.purge(ctx, purger, admin.PurgeRequest{Filter: f, Waiting: true, DryRun: dryRun}, "cancelled")
}

// cancelled is the outcome for one message.
type cancelled struct {
	Route  string `json:"route"`
	ID     string `json:"id,omitempty"`
	Topic  string `json:"topic,omitempty"`
	Dedupe string `json:"dedupe_key,omitempty"`
	Status string `json:"status"`
}

// cancelNamed cancels messages by id, or one by topic and dedupe key.
func (c *command) cancelNamed(ctx context.Context, s *Store, f *admin.Filter, dedupeKey string, dryRun bool) error {
	other := *f
	other.IDs, other.Routes, other.Topics = nil, nil, nil
	if dedupeKey != "" && len(f.Tenants) == 1 {
		other.Tenants = nil
	}
	switch {
	case !other.IsZero() || len(f.IDs) > 0 && len(f.Topics) > 0:
		return withCode(ExitUsage, "with ids, or with --dedupe-key, only --route can be given (and --topic and one --tenant for --dedupe-key)")
	case dedupeKey != "" && (len(f.IDs) > 0 || len(f.Topics) != 1):
		return withCode(ExitUsage, "--dedupe-key: give one --topic with it, and no ids")
	case s.Producer == nil:
		return withCode(ExitUsage, "this store cannot cancel messages (%w): see docs/capabilities.md", waybill.ErrUnsupported)
	}
	keys, live, err := c.cancelKeys(ctx, s, f, dedupeKey)
	if err != nil {
		return err
	}
	out := make([]cancelled, 0, len(keys))
	for _, k := range keys {
		out = append(out, cancelled{k.Route, k.ID, k.Topic, k.DedupeKey, "would be tried"})
	}
	missing, held := 0, 0
	if !dryRun {
		ctx, cancel := c.limited(ctx)
		defer cancel()
		var statuses []waybill.CancelStatus
		err := c.act(ctx, dryRun, func(ctx context.Context) (err error) {
			for _, k := range keys {
				c.acts.entry.Add(k.ID)
			}
			statuses, err = s.Producer.Cancel(ctx, keys...)
			c.note("%v", statuses)
			return err
		})
		if err != nil {
			return err
		}
		for i, status := range statuses {
			out[i].Status = status.String()
			switch status {
			case waybill.CancelNotFound:
				if live[keys[i]] {
					out[i].Status, held = "due: its relay can have it out", held+1
					continue
				}
				missing++
			case waybill.CancelInFlight:
				held++
			case waybill.CancelDone, waybill.CancelUncertain:
			}
		}
	}
	if err := c.showCancelled(out); err != nil {
		return err
	}
	switch {
	case held > 0:
		return withCode(ExitRefused, "%s not cancelled: a relay holds it, or can have it out", counted(held, "message"))
	case missing > 0:
		return withCode(ExitNotFound, "%s not found: not there, or ended already", counted(missing, "message"))
	}
	return nil
}

// cancelKeys names each message on each of its routes. live are those that were seen there and have not ended.
func (c *command) cancelKeys(ctx context.Context, s *Store, f *admin.Filter, dedupeKey string) (keys []waybill.CancelKey, live map[waybill.CancelKey]bool, err error) {
	live = map[waybill.CancelKey]bool{}
	if dedupeKey != "" {
		routes := f.Routes
		if len(routes) == 0 {
			routes = []string{waybill.DefaultRoute}
		}
		for _, route := range routes {
			keys = append(keys, waybill.CancelKey{Route: route, Topic: f.Topics[0], DedupeKey: dedupeKey, Tenant: strings.Join(f.Tenants, "")})
		}
		return keys, live, nil
	}
	inspector, _ := core.As[admin.Inspector](s.Outbox)
	for _, id := range f.IDs {
		routes := f.Routes
		switch {
		case len(routes) > 0:
		case inspector == nil:
			return nil, nil, withCode(ExitUsage, "name the routes with --route: this store cannot look for them")
		default:
			found, err := c.find(ctx, inspector, s, id)
			if err != nil {
				return nil, nil, err
			}
			if len(found) == 0 {
				return nil, nil, notThere(id)
			}
			for i := range found {
				routes = append(routes, found[i].Route)
				live[waybill.CancelKey{Route: found[i].Route, ID: id}] = !found[i].State.Terminal()
			}
		}
		for _, route := range routes {
			keys = append(keys, waybill.CancelKey{Route: route, ID: id})
		}
	}
	return keys, live, nil
}

func (c *command) showCancelled(out []cancelled) error {
	if c.json {
		return c.writeJSON(struct {
			Messages []cancelled `json:"messages"`
		}{out})
	}
	rows := make([][]string, 0, len(out))
	for _, m := range out {
		rows = append(rows, []string{m.Route, strings.TrimSpace(m.ID + " " + m.Topic + " " + m.Dedupe), m.Status})
	}
	return c.table([]string{"ROUTE", "MESSAGE", "OUTCOME"}, rows)
}
