package redisstreams

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core/parked"
)

// parkedPage bounds the parked messages of one question to the server.
const parkedPage = 100

// parkedQueue makes the operations on parked messages methods of a Transport.
type parkedQueue = admin.ParkedQueue

func (t *Transport) walks() parked.Walks {
	return parked.Walks{Adapter: "waybill/redisstreams", Open: func(ctx context.Context, op, queue string) (parked.Walk, error) {
		return &parkedWalk{t: t, op: op, queue: queue, from: "-"}, t.queueExists(ctx, op, queue)
	}}
}

// parkedWalk reads the parked messages of a queue, page by page.
type parkedWalk struct {
	t         *Transport
	op, queue string
	page      []entry
	from      string // the next page's first id; "" = there is none
	last      string // the id of the last message of the walk, if there are several pages
	position  int    // of the latest message
}

// Total implements parked.Walk.
func (w *parkedWalk) Total(ctx context.Context) (int, error) {
	n, err := call(ctx, w.t, w.op, func(ctx context.Context) (int64, error) {
		return w.t.client.XLen(ctx, w.t.keys.parked(w.queue)).Result()
	})
	return int(n), err
}

// Next implements parked.Walk.
func (w *parkedWalk) Next(ctx context.Context, _ int) (*parked.Item, error) {
	if len(w.page) == 0 && w.from != "" {
		if err := w.read(ctx); err != nil {
			return nil, err
		}
	}
	if len(w.page) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	x := w.page[0]
	w.page = w.page[1:]
	w.position++
	return &parked.Item{Parked: parkedOf(x, w.queue, w.position), Raw: x.id}, nil
}

// read reads the next page. After the first page of several it asks for the id of the last message. Messages that are
// parked from then on, such as those that this walk replays, are not on the walk.
func (w *parkedWalk) read(ctx context.Context) (err error) {
	last := w.last
	if last == "" {
		last = "+"
	}
	if w.page, err = w.ask(ctx, "XRANGE", w.from, last, parkedPage); err != nil {
		return err
	}
	if len(w.page) < parkedPage {
		w.from = ""
		return nil
	}
	w.from = "(" + w.page[len(w.page)-1].id
	if w.last == "" {
		newest, err := w.ask(ctx, "XREVRANGE", "+", "-", 1)
		if err != nil {
			return err
		}
		w.last = w.page[len(w.page)-1].id // if others have taken the rest
		if len(newest) > 0 {
			w.last = newest[0].id
		}
	}
	return nil
}

func (w *parkedWalk) ask(ctx context.Context, command, from, to string, n int) ([]entry, error) {
	return call(ctx, w.t, w.op, func(ctx context.Context) ([]entry, error) {
		return readEntries(w.t.client.Do(ctx, command, w.t.keys.parked(w.queue), from, to, "COUNT", n))
	})
}

// Replay implements parked.Walk. The server is asked also when ctx has ended, so that the result of each is known.
func (w *parkedWalk) Replay(ctx context.Context, items []*parked.Item) error {
	t, ctx := w.t, context.WithoutCancel(ctx)
	return parked.Each(items, func(m *parked.Item) (bool, error) {
		var fields []byte
		if m.Edited {
			list := appendFields(nil, &m.Envelope)
			fields = packStrings(packArray(nil, len(list)), list)
		}
		code, err := call(ctx, t, w.op, func(ctx context.Context) (int64, error) {
			return replayScript.Run(ctx, t.client, []string{t.keys.queue(w.queue), t.keys.parked(w.queue)}, m.Raw, t.opts.MaxLen, fields).Int64()
		})
		if err == nil && code == 2 {
			full := *errTopicFull
			full.Op = "waybill/redisstreams: " + w.op
			err = &full
		}
		return err == nil && code == 0, err
	})
}

// Remove implements parked.Walk, as Replay does.
func (w *parkedWalk) Remove(ctx context.Context, items []*parked.Item) error {
	ctx = context.WithoutCancel(ctx)
	return parked.Each(items, func(m *parked.Item) (bool, error) {
		n, err := call(ctx, w.t, w.op, func(ctx context.Context) (int64, error) {
			return w.t.client.XDel(ctx, w.t.keys.parked(w.queue), m.Raw.(string)).Result()
		})
		return n > 0, err
	})
}

// Close implements parked.Walk.
func (w *parkedWalk) Close(context.Context) {}

// readEntries keeps the order of the fields, unlike the driver's own type.
func readEntries(cmd *redis.Cmd) ([]entry, error) {
	list, err := cmd.Slice()
	if err != nil {
		return nil, err
	}
	out := make([]entry, 0, len(list))
	for _, x := range list {
		parts, _ := x.([]any)
		if len(parts) != 2 {
			continue
		}
		id, _ := parts[0].(string)
		fields, _ := parts[1].([]any)
		out = append(out, entry{id, fields})
	}
	return out, nil
}

func (t *Transport) queueExists(ctx context.Context, op, queue string) error {
	if err := t.open(op); err != nil {
		return err
	}
	n, err := call(ctx, t, op, func(ctx context.Context) (int64, error) { return t.client.Exists(ctx, t.keys.queue(queue)).Result() })
	if err == nil && n == 0 {
		return &waybill.Error{
			Op: "waybill/redisstreams: " + op, Class: waybill.ClassPermanent,
			Err: fmt.Errorf("%w: there is no queue %q on bus %q: check the names", waybill.ErrNotFound, queue, t.opts.Bus),
		}
	}
	return err
}
