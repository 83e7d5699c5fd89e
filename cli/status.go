package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// statusEvery is how often status asks with --wait-empty.
const statusEvery = time.Second

// countJSON is a count as programs get it.
type countJSON struct {
	Route     string  `json:"route"`
	State     string  `json:"state"`
	Reason    string  `json:"reason,omitempty"`
	Records   int64   `json:"records"`
	Due       int64   `json:"due,omitempty"`
	Estimated bool    `json:"estimated,omitempty"`
	AtLeast   bool    `json:"at_least,omitempty"`
	Oldest    float64 `json:"oldest_seconds,omitempty"`
}

func (c *command) statusCommand() *cobra.Command {
	var store string
	var routes []string
	var waitEmpty bool
	var most time.Duration
	cmd := &cobra.Command{
		Use: "status", Short: "count the records of a store by route, state and reason", Args: cobra.NoArgs,
		Long: `status counts the records of a store by route, state and reason. DUE is how many of them are due now: the others are
scheduled, wait for their next attempt, or are out. OLDEST is how long the oldest record has been due. A large number can
be an estimate, which a ~ marks. "more than" marks a least number.

Below the table status names the first due message of each route, and says its block reason, as show does. It names the
members that have messages out, with their number and the age of the oldest, as of each member's latest heartbeat, which
is a third of its lease apart from the next one. The oldest are first; there are at most 20.

With --wait-empty it asks once a second until no record waits, those that are scheduled included. It ends with exit code
5 if some still wait after --wait-timeout.`,
		RunE: c.onStore(&store, func(ctx context.Context, s *Store, _ []string) error {
			counter, err := able[admin.Counter](s.Outbox, "store", "count its records")
			if err != nil {
				return err
			}
			counts, err := c.counts(ctx, counter, routes)
			if err != nil {
				return err
			}
			if waitEmpty {
				if counts, err = c.waitEmpty(ctx, counter, routes, most, counts); err != nil {
					return err
				}
			}
			var firsts []firstDue
			if !waitEmpty {
				firsts = c.firstDue(ctx, s.Outbox, store, counts)
			}
			if err := c.showCounts(counts, routes, firsts, c.handedOut(ctx, s.Outbox, routes)); err != nil {
				return err
			}
			if n, estimated, atLeast := waiting(counts); waitEmpty && (n > 0 || atLeast) {
				return withCode(ExitFindings, "still waiting after %s: %s%s", most, about(estimated, atLeast), records(int(n)))
			}
			return nil
		}),
	}
	storeFlag(cmd, &store)
	c.progressFlag(cmd)
	cmd.Flags().StringArrayVar(&routes, "route", nil, "only this route; repeatable")
	cmd.Flags().BoolVar(&waitEmpty, "wait-empty", false, "wait until no record waits")
	cmd.Flags().DurationVar(&most, "wait-timeout", 10*time.Minute, "how long --wait-empty waits at most")
	return cmd
}

func (c *command) counts(ctx context.Context, counter admin.Counter, routes []string) ([]admin.Count, error) {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	counts, err := counter.Counts(ctx)
	return slices.DeleteFunc(counts, func(n admin.Count) bool { return len(routes) > 0 && !slices.Contains(routes, n.Route) }), err
}

// waiting returns how many records have not ended, whether that is an estimate, and whether there are more.
func waiting(counts []admin.Count) (n int64, estimated, atLeast bool) {
	for i := range counts {
		if !counts[i].State.Terminal() {
			n += counts[i].N
			estimated = estimated || counts[i].Estimated
			atLeast = atLeast || counts[i].AtLeast
		}
	}
	return n, estimated, atLeast
}

// waitEmpty asks until nothing waits, or until most is over, and returns the latest counts.
func (c *command) waitEmpty(ctx context.Context, counter admin.Counter, routes []string, most time.Duration, counts []admin.Count) ([]admin.Count, error) {
	end := time.NewTimer(most)
	defer end.Stop()
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	show := c.newProgress()
	defer show.end()
	first, _, _ := waiting(counts)
	for {
		n, _, more := waiting(counts)
		if n == 0 && !more {
			return counts, nil
		}
		first = max(first, n)
		show.at("gone", first-n, first)
		select {
		case <-tick.C:
		case <-end.C:
			return counts, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		var err error
		if counts, err = c.counts(ctx, counter, routes); err != nil {
			return nil, err
		}
	}
}

func (c *command) showCounts(counts []admin.Count, routes []string, firsts []firstDue, outs []outJSON) error {
	n, estimated, atLeast := waiting(counts)
	due := int64(0)
	for i := range counts {
		due += counts[i].Due
	}
	if c.json {
		out := make([]countJSON, 0, len(counts))
		for _, k := range counts {
			out = append(out, countJSON{k.Route, k.State.String(), string(k.Reason), k.N, k.Due, k.Estimated, k.AtLeast, k.Oldest.Seconds()})
		}
		return c.writeJSON(struct {
			Counts    []countJSON `json:"counts"`
			Waiting   int64       `json:"waiting"`
			Due       int64       `json:"due"`
			Estimated bool        `json:"estimated,omitempty"`
			AtLeast   bool        `json:"at_least,omitempty"`
			Waits     []firstDue  `json:"waits,omitempty"`
			Out       []outJSON   `json:"out,omitempty"`
		}{out, n, due, estimated, atLeast, firsts, outs})
	}
	rows := make([][]string, 0, len(counts))
	for _, k := range counts {
		oldest, isDue := "", ""
		if !k.State.Terminal() {
			isDue = about(k.Estimated, k.AtLeast && k.Due > 0) + grouped(k.Due)
		}
		if k.Oldest > 0 {
			oldest = ago(k.Oldest)
		}
		rows = append(rows, []string{k.Route, k.State.String(), string(k.Reason), about(k.Estimated, k.AtLeast) + grouped(k.N), isDue, oldest})
	}
	if len(rows) > 0 {
		if err := c.table([]string{"ROUTE", "STATE", "REASON", "RECORDS", "DUE", "OLDEST"}, rows); err != nil {
			return err
		}
	}
	say(c.io.Out, "%s%s waiting, %s%s due\n", about(estimated, atLeast), grouped(n), about(estimated, atLeast && due > 0), grouped(due))
	for _, route := range routes {
		if !slices.ContainsFunc(counts, func(k admin.Count) bool { return k.Route == route }) {
			c.unserved(route)
		}
	}
	for _, f := range firsts {
		say(c.io.Out, "route %s: message %s has been due for %s, and waits: %s\n",
			clean(f.Route), clean(f.ID), ago(time.Duration(f.Age*float64(time.Second))), clean(f.Waits.Text))
	}
	for _, o := range outs {
		say(c.io.Out, "route %s: %s has %s out, the oldest for %s\n",
			clean(o.Route), clean(o.Member), records(o.Out), ago(time.Duration(o.Oldest*float64(time.Second))))
	}
	return nil
}

// maxOuts bounds the lines of status about records that are out. Each is about a route of a member.
const maxOuts = 20

// outJSON is how much of a route a member has out.
type outJSON struct {
	Route  string  `json:"route"`
	Member string  `json:"member"`
	Out    int     `json:"records"`
	Oldest float64 `json:"oldest_seconds"`
}

// handedOut returns the records that the members had out at their latest heartbeats, by route, the oldest first. Only
// heartbeats have these numbers: a record that is out is not written. A store that does not answer hides no counts.
func (c *command) handedOut(ctx context.Context, store core.OutboxStore, routes []string) (outs []outJSON) {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	membership, err := store.Heartbeat(ctx, core.HeartbeatRequest{})
	if err != nil {
		say(c.io.Err, "what is out is not known: %s\n", clean(core.ErrorText(err)))
		return nil
	}
	for i := range membership.Members {
		m := &membership.Members[i]
		for _, r := range m.Routes {
			if r.HandedOut > 0 && (len(routes) == 0 || slices.Contains(routes, r.Route)) {
				outs = append(outs, outJSON{r.Route, m.Name, r.HandedOut, r.OldestHandedOut.Seconds()})
			}
		}
	}
	slices.SortFunc(outs, func(a, b outJSON) int {
		return cmp.Or(cmp.Compare(b.Oldest, a.Oldest), strings.Compare(a.Route, b.Route), strings.Compare(a.Member, b.Member))
	})
	return outs[:min(len(outs), maxOuts)]
}

// maxFirsts bounds the routes whose first due message status explains. firstOf bounds the records among which it looks
// for that message.
const (
	maxFirsts = 20
	firstOf   = 100
)

// firstDue is the first message of a route that is due and not out.
type firstDue struct {
	Route string    `json:"route"`
	ID    string    `json:"id"`
	Age   float64   `json:"age_seconds"`
	Waits *waitJSON `json:"waits"`
}

// firstDue explains why the first due message of each route waits, as far as the store can tell.
func (c *command) firstDue(ctx context.Context, store core.OutboxStore, name string, counts []admin.Count) (out []firstDue) {
	inspector, ok := core.As[admin.Inspector](store)
	if !ok {
		return nil
	}
	asked := map[string]bool{}
	for i := range counts {
		route := counts[i].Route
		if counts[i].Due == 0 || asked[route] || len(asked) == maxFirsts {
			continue
		}
		asked[route] = true
		if r := c.firstOf(ctx, inspector, route); r != nil {
			out = append(out, firstDue{route, r.Envelope.ID, max(r.Age, 0).Seconds(), c.why(ctx, store, name, r)})
		}
	}
	return out
}

// firstOf returns the first record of a route that is due and not out, if it is among the first ones; else nil.
func (c *command) firstOf(ctx context.Context, inspector admin.Inspector, route string) *admin.Stored {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	f := admin.Filter{Routes: []string{route}, States: []core.State{core.StatePending, core.StateFailed}}
	l, err := inspector.List(ctx, f, admin.PageRequest{Limit: firstOf})
	if err != nil {
		return nil // the counts are the answer
	}
	for i := range l.Records {
		if l.Records[i].DueIn == 0 {
			return &l.Records[i]
		}
	}
	return nil
}

// about is what stands before a number that is no count.
func about(estimated, atLeast bool) string {
	switch {
	case atLeast:
		return "more than "
	case estimated:
		return "~"
	}
	return ""
}
