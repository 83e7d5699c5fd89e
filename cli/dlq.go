package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/transport/table"
)

// dlq are the flags that the commands for parked messages share.
type dlq struct {
	c                *command
	store, transport string
	elsewhere        string // where else a queue that was not found can be
	f                filterFlags
	errorText        string
	positions        []int
}

func (c *command) dlqCommand() *cobra.Command {
	d := &dlq{c: c}
	g := group("dlq", "look after messages that consumers gave up", d.listCommand(), d.showCommand(), d.replayCommand(), d.editCommand(), d.purgeCommand())
	g.Long = `dlq looks after the parked messages of a subscription's queue. They are at the broker, or with --store in the outbox of a
store that is itself the queue. Without either flag the configuration's subscriptions say where the queue is.`
	for _, cmd := range g.Commands() {
		cmd.Flags().StringVar(&d.transport, "transport", "", "name in transports; that of the subscription, or the only one")
		cmd.Flags().StringVar(&d.store, "store", "", "name in stores, if the queue is in its outbox")
	}
	return g
}

// filterFlags adds the flags of a filter.
func (d *dlq) filterFlags(cmd *cobra.Command) {
	d.f.add(cmd, true)
	cmd.Flags().StringVar(&d.errorText, "error", "", "a part of the error's text")
	cmd.Flags().IntSliceVar(&d.positions, "position", nil, "position that list shows; give --since and --until too, since others can replay meanwhile")
}

func (d *dlq) filter() (admin.ParkedFilter, error) {
	f, err := d.f.parked()
	f.Error, f.Positions = d.errorText, d.positions
	if err == nil && len(f.Problems()) > 0 {
		err = waybill.Invalid("waybill: arguments", f.Problems()...)
	}
	return f, err
}

// open returns where the parked messages of queue are.
func (d *dlq) open(ctx context.Context, queue string) (admin.ParkedQueue, error) {
	conf, err := d.c.load()
	switch {
	case err != nil:
		return nil, err
	case d.store != "" && d.transport != "":
		return nil, withCode(ExitUsage, "give --store or --transport")
	case d.store == "" && d.transport == "":
		i := slices.IndexFunc(conf.Subscriptions, func(s subscriptionSettings) bool { return s.Queue == queue })
		if i >= 0 {
			d.transport = conf.Subscriptions[i].Transport
		}
	}
	env := d.c.quiet()
	if d.store == "" && (d.transport != "" || len(conf.transports) > 0) {
		t, err := d.c.openTransport(ctx, d.transport, env)
		if err != nil {
			return nil, err
		}
		if len(conf.stores) > 0 {
			d.elsewhere = "it was looked for at the broker: if a store is the queue, give --store"
		}
		return able[admin.ParkedQueue](t.Publisher, "transport", "show parked messages")
	}
	if len(conf.transports) > 0 {
		d.elsewhere = "it was looked for in the outbox of a store: if it is at a broker, give --transport instead of --store"
	}
	s, err := d.c.openStore(ctx, d.store, env)
	if err != nil {
		return nil, err
	}
	t, err := table.New(s.Outbox, table.Options{Logger: env.Logger, MeterProvider: env.MeterProvider})
	if err != nil {
		return nil, err
	}
	d.c.opened = append(d.c.opened, t.Close)
	return explained{t, func(err error) error { return d.c.explain(ctx, s, d.store, err) }}, nil
}

// explained is a table queue whose first answer explains a missing schema.
type explained struct {
	admin.ParkedQueue
	explain func(error) error
}

func (e explained) ParkedDepth(ctx context.Context, queue string) (int, error) {
	n, err := e.ParkedQueue.ParkedDepth(ctx, queue)
	return n, e.explain(err)
}

// onQueue runs fn with the queue that is the first argument, which answered once within the time for a question.
func (d *dlq) onQueue(fn func(ctx context.Context, q *parkedQueue, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		q, err := d.open(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		n, err := d.depth(cmd.Context(), q, args[0])
		switch {
		case errors.Is(err, waybill.ErrNotFound) && d.elsewhere != "":
			return fmt.Errorf("%w; %s", err, d.elsewhere)
		case err != nil:
			return err
		}
		d.c.begins(cmd, "queue "+args[0], args[1:])
		return fn(cmd.Context(), &parkedQueue{q, args[0], n}, args[1:])
	}
}

// parkedQueue is a queue and how many messages were parked when the command began.
type parkedQueue struct {
	admin.ParkedQueue
	name  string
	depth int
}

// parkedJSON is a parked message as programs get it.
type parkedJSON struct {
	Position int         `json:"position"`
	Queue    string      `json:"queue"`
	Reason   string      `json:"reason"`
	Error    string      `json:"error,omitempty"`
	Attempts int         `json:"attempts,omitempty"`
	At       string      `json:"parked_at,omitempty"`
	Message  messageJSON `json:"message"`
}

func parkedOf(p *admin.Parked) parkedJSON {
	return parkedJSON{p.Position, p.Queue, string(p.Reason), p.Error, p.Attempts, stamp(p.At), messageOf(&p.Envelope)}
}

func (d *dlq) listCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list [QUEUE]", Short: "count the parked messages of a queue, and list them", Args: cobra.MaximumNArgs(1),
		Long: `list counts the parked messages of a queue, and lists the oldest that match. The reasons are those of the messages that
it lists: a broker must be asked for each message. A larger --limit looks at more, and takes longer; so does a filter
that few match. Without QUEUE it counts those of each queue of the configuration's subscriptions.`,
	}
	list := d.onQueue(func(ctx context.Context, q *parkedQueue, _ []string) error {
		f, err := d.filter()
		if err != nil {
			return err
		}
		p := problems{}
		p.between("--limit", limit, 1, 100_000)
		if err := p.err(); err != nil {
			return err
		}
		ctx, cancel := d.c.limited(ctx)
		defer cancel()
		found, err := q.ListParked(ctx, q.name, f, limit)
		if err != nil {
			return err
		}
		return d.show(q, found, limit)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return d.depths(cmd)
		}
		return list(cmd, args)
	}
	d.filterFlags(cmd)
	cmd.Flags().IntVar(&limit, "limit", 50, "messages to show, at most 100000")
	return cmd
}

func (d *dlq) show(q *parkedQueue, found []admin.Parked, limit int) error {
	c := d.c
	reasons := map[waybill.Reason]int{}
	for i := range found {
		reasons[found[i].Reason]++
	}
	if c.json {
		out := make([]parkedJSON, 0, len(found))
		for i := range found {
			out = append(out, parkedOf(&found[i]))
		}
		return c.writeJSON(struct {
			Queue    string                 `json:"queue"`
			Parked   int                    `json:"parked"`
			Reasons  map[waybill.Reason]int `json:"reasons"`
			Messages []parkedJSON           `json:"messages"`
		}{q.name, q.depth, reasons, out})
	}
	say(c.io.Out, "%s parked\n", counted(q.depth, "message"))
	switch {
	case len(found) == 0 && q.depth > 0:
		say(c.io.Out, "none of them matches, or somebody else looks at them at this moment\n")
		return nil
	case len(found) == 0:
		return nil
	case len(found) < q.depth:
		say(c.io.Out, "of the %s below:\n", grouped(int64(len(found))))
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		say(c.io.Out, "  %s: %s\n", clean(string(reason)), grouped(int64(reasons[reason])))
	}
	rows := make([][]string, 0, len(found))
	for i := range found {
		p := &found[i]
		e := &p.Envelope
		rows = append(rows, []string{
			strconv.Itoa(p.Position), string(p.Reason), e.Topic, check.Clip(e.Key, 40), e.ID, stamp(p.At), strconv.Itoa(p.Attempts), oneLine(p.Error),
		})
	}
	if err := c.table([]string{"POSITION", "REASON", "TOPIC", "KEY", "ID", "PARKED", "ATTEMPTS", "ERROR"}, rows); err != nil {
		return err
	}
	if len(found) == limit {
		say(c.io.Out, "there may be more: see --limit and the filters\n")
	}
	return nil
}

func (d *dlq) showCommand() *cobra.Command {
	var body bodyFlags
	cmd := &cobra.Command{
		Use: "show QUEUE [ID]", Short: "show the oldest parked message that matches, with its body", Args: cobra.RangeArgs(1, 2),
		RunE: d.onQueue(func(ctx context.Context, q *parkedQueue, ids []string) error {
			f, err := d.filter()
			if err != nil {
				return err
			}
			f.IDs = append(f.IDs, ids...)
			p := problems{}
			body.check(&p)
			if err := p.err(); err != nil {
				return err
			}
			found, err := d.inspect(ctx, q, f)
			if err != nil {
				return err
			}
			if body.to != "" {
				if err := body.write(found.Envelope.Body); err != nil {
					return err
				}
			}
			if d.c.json {
				return d.c.writeJSON(parkedOf(&found))
			}
			fields := []fieldText{
				{"queue", found.Queue},
				{"position", strconv.Itoa(found.Position)},
				{"reason", string(found.Reason)},
				{"error", found.Error},
				{"attempts", positive(found.Attempts)},
				{"parked at", stamp(found.At)},
			}
			if err := d.c.showFields(append(fields, messageFields(&found.Envelope)...)); err != nil {
				return err
			}
			d.c.showBody(found.Envelope.Body, &body)
			return nil
		}),
	}
	d.filterFlags(cmd)
	body.add(cmd)
	return cmd
}

// inspect returns the oldest parked message that f selects.
func (d *dlq) inspect(ctx context.Context, q *parkedQueue, f admin.ParkedFilter) (admin.Parked, error) {
	ctx, cancel := d.c.limited(ctx)
	defer cancel()
	p, err := q.InspectParked(ctx, q.name, f)
	if errors.Is(err, waybill.ErrNotFound) {
		return p, withCode(ExitNotFound, "queue %s has no parked message that matches", q.name)
	}
	return p, err
}
