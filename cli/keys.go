package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/relay"
)

// blockedJSON is a blocked key as programs get it.
type blockedJSON struct {
	Route  string     `json:"route"`
	Key    string     `json:"key"`
	Cause  string     `json:"cause"`
	Since  float64    `json:"since_seconds"`
	Behind int        `json:"behind"`
	Record recordJSON `json:"head"`
}

func (c *command) keysCommand() *cobra.Command {
	var store, route string
	g := group("keys", "list keys that wait behind a message, and free them",
		c.keysList(&store, &route),
		c.keysDecide(&store, &route, "skip", "give up the message that a key waits for; the key goes on", admin.HeadSkip),
		c.keysDecide(&store, &route, "set-aside", "put the message that a key waits for aside, to be redriven some day; the key goes on", admin.HeadSetAside),
		c.keysDecide(&store, &route, "requeue", "try the message that a key waits for at once, with attempts reset", admin.HeadRequeue),
	)
	for _, cmd := range g.Commands() {
		storeFlag(cmd, &store)
		cmd.Flags().StringVar(&route, "route", waybill.DefaultRoute, "route")
	}
	return g
}

func (c *command) keysList(store, route *string) *cobra.Command {
	var req admin.BlockedKeysRequest
	cmd := &cobra.Command{
		Use: "list", Short: "list the keys of a route whose first message blocks later ones", Args: cobra.NoArgs,
		Long: `list shows the keys of a route in per-key order whose first message waits for a retry, so that the later ones wait, too.
It also shows keys behind a due message whose topic no queue is bound for (cause topic) and, on a route that the
configuration serves with block_after_abandon, keys behind an abandoned message. BEHIND is how many due messages of the key
wait, counted up to 1,000. waybill show says why the first one waits.`,
		RunE: c.onStore(store, func(ctx context.Context, s *Store, _ []string) error {
			p := problems{}
			p.between("--limit", req.Limit, 1, admin.MaxPageLimit)
			if err := p.err(); err != nil {
				return err
			}
			keeper, err := able[admin.BlockedKeys](s.Outbox, "store", "list blocked keys")
			if err != nil {
				return err
			}
			req.Route = *route
			req.BlockAfterAbandon = req.BlockAfterAbandon || c.conf.blocks(*store, []string{*route})
			ctx, cancel := c.limited(ctx)
			defer cancel()
			keys, more, err := keeper.BlockedKeys(ctx, req)
			if err != nil {
				return err
			}
			return c.showKeys(keys, more, *route)
		}),
	}
	cmd.Flags().StringVar(&req.After, "after", "", "go on after this key")
	cmd.Flags().IntVar(&req.Limit, "limit", 50, "keys to show, at most 1000")
	cmd.Flags().BoolVar(&req.BlockAfterAbandon, "block-after-abandon", false, "the route is served so, also if the configuration says otherwise")
	return cmd
}

func (c *command) showKeys(keys []admin.BlockedKey, more bool, route string) error {
	next := ""
	if more && len(keys) > 0 {
		next = keys[len(keys)-1].Key
	}
	if c.json {
		out := make([]blockedJSON, 0, len(keys))
		for i := range keys {
			k := &keys[i]
			out = append(out, blockedJSON{k.Route, k.Key, k.Cause, k.Since.Seconds(), k.Behind, recordOf(&k.Head)})
		}
		return c.writeJSON(struct {
			Keys []blockedJSON `json:"keys"`
			Next string        `json:"next,omitempty"`
		}{out, next})
	}
	if len(keys) == 0 {
		say(c.io.Out, "no key is blocked\n")
		c.unserved(route)
		return nil
	}
	rows := make([][]string, 0, len(keys))
	for i := range keys {
		k := &keys[i]
		due := ""
		if k.Head.DueIn > 0 {
			due = "in " + ago(k.Head.DueIn)
		}
		rows = append(rows, []string{k.Key, k.Cause, ago(k.Since), behind(k.Behind), k.Head.Envelope.ID, k.Head.Envelope.Topic, due, oneLine(k.Head.LastError)})
	}
	if err := c.table([]string{"KEY", "CAUSE", "SINCE", "BEHIND", "ID", "TOPIC", "DUE", "ERROR"}, rows); err != nil {
		return err
	}
	if next != "" {
		say(c.io.Out, "there are more; go on with --after %s\n", clean(next))
	}
	return nil
}

func behind(n int) string {
	if n == admin.MaxPageLimit {
		return grouped(int64(n)) + " or more"
	}
	return grouped(int64(n))
}

// serves reports whether a relay of the configuration serves a stored route.
func (l *loaded) serves(route string) bool {
	for name := range l.Relays {
		r := l.Relays[name]
		opts := r.options()
		if len(opts.Routes) == 0 {
			opts.Routes = []relay.Route{{}}
		}
		for i := range opts.Routes {
			if slices.Contains(storedRoutes(&opts.Routes[i]), route) {
				return true
			}
		}
	}
	return false
}

// reached asks the store something, so that one that is down is noticed within the time for one question.
func (c *command) reached(ctx context.Context, keeper admin.BlockedKeys, route string) error {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	_, _, err := keeper.BlockedKeys(ctx, admin.BlockedKeysRequest{Route: route, Limit: 1})
	return err
}

func (c *command) keysDecide(store, route *string, use, short string, action admin.HeadAction) *cobra.Command {
	return &cobra.Command{
		Use: use + " KEY ID", Short: short, Args: cobra.ExactArgs(2),
		Long: short + `. ID is the message as keys list shows it: if another one is in its place
by then, nothing happens (exit code 3). Exit code 4 says that a relay holds the message; the decision can stand then.`,
		RunE: c.onStore(store, func(ctx context.Context, s *Store, args []string) error {
			keeper, err := able[admin.BlockedKeys](s.Outbox, "store", "free blocked keys")
			if err != nil {
				return err
			}
			key, id := args[0], args[1]
			if action == admin.HeadSkip {
				if err := c.confirm(ctx, "give up message %s of key %s", id, check.Clip(key, 80)); err != nil {
					return err
				}
			}
			if err := c.reached(ctx, keeper, *route); err != nil {
				return err
			}
			// the relay may take ten seconds to carry it out, and a dead one is missed for its lease
			ctx, cancel := context.WithTimeout(ctx, max(c.timeout, 15*time.Second))
			defer cancel()
			decide := func() error { return keeper.DecideHead(ctx, *route, key, id, action) }
			again := decide
			if ender, ok := core.As[admin.Terminator](s.Outbox); ok && action != admin.HeadRequeue {
				again = func() error { return endHead(ctx, ender, *route, key, id, action) }
			}
			c.acts.entry.Add(id)
			if err := c.act(ctx, false, func(ctx context.Context) error { return withoutDead(ctx, s, decide, again) }); err != nil {
				return err
			}
			if c.json {
				return c.writeJSON(struct {
					Route  string `json:"route"`
					Key    string `json:"key"`
					ID     string `json:"id"`
					Action string `json:"action"`
				}{*route, key, id, use})
			}
			say(c.io.Out, "%s: message %s of key %s of route %s\n", use, clean(id), clean(key), clean(*route))
			return nil
		}),
	}
}

// endHead ends the message with id in place of a relay that was told to, and is dead. It deletes the notice.
func endHead(ctx context.Context, store admin.Terminator, route, key, id string, action admin.HeadAction) error {
	reason := waybill.ReasonSkipped
	if action == admin.HeadSetAside {
		reason = waybill.ReasonSetAside
	}
	one := admin.Filter{Routes: []string{route}, Keys: []string{key}, IDs: []string{id}}
	sum, err := admin.DecideAll(ctx, store, admin.TerminateRequest{Filter: one, Reason: reason}, admin.TerminateOptions{})
	if err == nil && sum.Ended == 0 {
		return notThere(id)
	}
	return err
}

// unserved says that a route, of which there is nothing to show, may be a wrong name.
func (c *command) unserved(route string) {
	if len(c.conf.Relays) > 0 && !c.conf.serves(route) {
		say(c.io.Err, "no relay of the configuration serves route %s: check its name\n", clean(route))
	}
}
