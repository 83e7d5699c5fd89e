package cli

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// depthJSON is the number of parked messages of a queue; nil: the queue is missing.
type depthJSON struct {
	Queue  string `json:"queue"`
	Parked *int   `json:"parked"`
}

// depths counts the parked messages of each queue of the configuration's subscriptions. It refuses filters, since it
// looks at no message.
func (d *dlq) depths(cmd *cobra.Command) error {
	var filters []string
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && f.Name != "transport" && f.Name != "store" {
			filters = append(filters, "--"+f.Name)
		}
	})
	if len(filters) > 0 {
		return withCode(ExitUsage, "name a queue, or leave out %s: without a queue all messages are counted", strings.Join(filters, ", "))
	}
	ctx := cmd.Context()
	conf, err := d.c.load()
	if err != nil {
		return err
	}
	if len(conf.Subscriptions) == 0 {
		return withCode(ExitUsage, "name a queue: the configuration has no subscriptions")
	}
	asked, at := d.transport, map[string]admin.ParkedQueue{}
	out := make([]depthJSON, 0, len(conf.Subscriptions))
	rows := make([][]string, 0, len(conf.Subscriptions))
	for i := range conf.Subscriptions {
		s := &conf.Subscriptions[i]
		transport := asked
		if d.store == "" {
			transport = cmp.Or(asked, s.Transport)
		}
		from := at[transport]
		if from == nil {
			d.transport = transport
			if from, err = d.open(ctx, s.Queue); err != nil {
				return err
			}
			at[transport] = from
		}
		n, err := d.depth(ctx, from, s.Queue)
		switch {
		case errors.Is(err, waybill.ErrNotFound):
			out = append(out, depthJSON{Queue: s.Queue})
			rows = append(rows, []string{s.Queue, "", "is missing: waybill topology declare makes it"})
		case err != nil:
			return err
		default:
			out = append(out, depthJSON{s.Queue, &n})
			rows = append(rows, []string{s.Queue, strconv.Itoa(n), ""})
		}
	}
	if d.c.json {
		return d.c.writeJSON(struct {
			Queues []depthJSON `json:"queues"`
		}{out})
	}
	return d.c.table([]string{"QUEUE", "PARKED", ""}, rows)
}

// depth asks for the number of parked messages of a queue, within the time for a question.
func (d *dlq) depth(ctx context.Context, from admin.ParkedQueue, queue string) (int, error) {
	ctx, cancel := d.c.limited(ctx)
	defer cancel()
	return from.ParkedDepth(ctx, queue) // reasons would take a look at each message
}
