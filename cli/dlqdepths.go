package cli

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// depthJSON is the number of parked messages of a queue; nil: the queue is missing.
type depthJSON struct {
	Queue  string `json:"queue"`
	Parked *int   `json:"parked"`
}

// depths counts the parked messages of each queue of the configuration's subscriptions.
func (d *dlq) depths(ctx context.Context) error {
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
		d.transport = cmp.Or(asked, s.Transport)
		from := at[d.transport]
		if from == nil {
			if from, err = d.open(ctx, s.Queue); err != nil {
				return err
			}
			at[cmp.Or(asked, s.Transport)] = from
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
