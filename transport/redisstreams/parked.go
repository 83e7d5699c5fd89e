package redisstreams

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/content"
)

// parkedPage bounds the parked messages of one question to the server.
const parkedPage = 100

// ParkedDepth implements admin.ParkedQueue. A queue that does not exist is waybill.ErrNotFound.
func (t *Transport) ParkedDepth(ctx context.Context, queue string) (int, error) {
	const op = "parked depth"
	if err := t.queueExists(ctx, op, queue); err != nil {
		return 0, err
	}
	n, err := call(ctx, t, op, func(ctx context.Context) (int64, error) { return t.client.XLen(ctx, t.keys.parked(queue)).Result() })
	return int(n), err
}

// CountParked implements admin.ParkedQueue.
func (t *Transport) CountParked(ctx context.Context, queue string) (map[waybill.Reason]int, error) {
	return t.parked().Count(ctx, queue)
}

// InspectParked implements admin.ParkedQueue.
func (t *Transport) InspectParked(ctx context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	return t.parked().Inspect(ctx, queue, f)
}

// ListParked implements admin.ParkedQueue; oldest first.
func (t *Transport) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	return t.parked().List(ctx, queue, f, limit)
}

func (t *Transport) parked() admin.ParkedReader {
	return admin.ParkedReader{Adapter: "waybill/redisstreams", Walk: func(ctx context.Context, op, queue string, _ int, fn func(*admin.Parked) int) error {
		if err := t.queueExists(ctx, op, queue); err != nil {
			return err
		}
		return t.walkParked(ctx, op, queue, "+", func(p *admin.Parked, _ entry) (bool, error) { return fn(p) > 0, nil })
	}}
}

// walkParked calls fn with each message up to the id last, oldest first, until that returns false or an error.
func (t *Transport) walkParked(ctx context.Context, op, queue, last string, fn func(*admin.Parked, entry) (bool, error)) error {
	from, position := "-", 0
	for {
		page, err := call(ctx, t, op, func(ctx context.Context) ([]entry, error) {
			return readEntries(t.client.Do(ctx, "XRANGE", t.keys.parked(queue), from, last, "COUNT", parkedPage))
		})
		if err != nil {
			return err
		}
		for _, x := range page {
			position++
			p := parkedOf(x, queue, position)
			if more, err := fn(&p, x); err != nil || !more {
				return err
			}
		}
		if len(page) < parkedPage {
			return nil
		}
		from = "(" + page[len(page)-1].id
	}
}

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

// ReplayParked implements admin.ParkedQueue. The server moves each message in one step. A message that finds its queue
// full stays parked and ends the replay with an outage.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	const op = "replay parked"
	matches := func(p *admin.Parked) bool { return !p.Envelope.Expired(time.Now()) && req.Filter.Matches(p) }
	ask := context.WithoutCancel(ctx) // so that the result of each is known
	return t.changeParked(ctx, op, &req, matches, func(p *admin.Parked, id string) (bool, error) {
		var fields []byte
		if req.Edit != nil {
			list := appendFields(nil, &p.Envelope)
			fields = packStrings(packArray(nil, len(list)), list)
		}
		code, err := call(ask, t, op, func(ctx context.Context) (int64, error) {
			return replayScript.Run(ctx, t.client, []string{t.keys.queue(req.Queue), t.keys.parked(req.Queue)}, id, t.opts.MaxLen, fields).Int64()
		})
		if err == nil && code == 2 {
			full := *errTopicFull
			full.Op = "waybill/redisstreams: " + op
			err = &full
		}
		return err == nil && code == 0, err
	})
}

// PurgeParked implements admin.ParkedQueue.
func (t *Transport) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	const op = "purge parked"
	if err := admin.CheckPurgeParked("waybill/redisstreams: "+op, &req); err != nil {
		return 0, err
	}
	ask := context.WithoutCancel(ctx) // as above
	return t.changeParked(ctx, op, &req, req.Filter.Matches, func(_ *admin.Parked, id string) (bool, error) {
		n, err := call(ask, t, op, func(ctx context.Context) (int64, error) {
			return t.client.XDel(ctx, t.keys.parked(req.Queue), id).Result()
		})
		return n > 0, err
	})
}

// changeParked does do with every message that matches and was parked before the call, one after the other. do reports
// whether it was still parked.
func (t *Transport) changeParked(
	ctx context.Context, op string, req *admin.ParkedRequest, matches func(*admin.Parked) bool, do func(p *admin.Parked, id string) (bool, error),
) (int, error) {
	if err := waybill.Invalid("waybill/redisstreams: "+op, req.Problems()...); err != nil {
		return 0, err
	}
	if err := t.queueExists(ctx, op, req.Queue); err != nil {
		return 0, err
	}
	total, last, err := t.parkedEnd(ctx, op, req.Queue)
	if err != nil || total == 0 {
		return 0, err
	}
	started, done, looked := time.Now(), 0, 0
	err = t.walkParked(ctx, op, req.Queue, last, func(p *admin.Parked, x entry) (bool, error) {
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("waybill/redisstreams: %s: %w", op, err)
		}
		looked++
		changed := false
		if matches(p) {
			var err error
			if changed, err = t.changeOne(req, p, x.id, do); err != nil {
				return false, err
			}
		}
		if changed {
			done++
		}
		if req.Progress != nil {
			req.Progress(min(looked, total), total)
		}
		if req.Limit > 0 && done >= req.Limit {
			return false, nil
		}
		if d := req.Pace(done, started, time.Now()); changed && d > 0 && looked < total {
			timer := time.NewTimer(d)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return false, fmt.Errorf("waybill/redisstreams: %s: %w", op, ctx.Err())
			}
		}
		return true, nil
	})
	return done, err
}

// changeOne edits p and does do with it, unless it was refused.
func (t *Transport) changeOne(req *admin.ParkedRequest, p *admin.Parked, id string, do func(*admin.Parked, string) (bool, error)) (bool, error) {
	if req.Edit != nil {
		body, err := req.Edit(*p)
		if err != nil {
			req.Tell(p, err)
			return false, nil
		}
		content.Repair(&p.Envelope, body)
	}
	changed, err := do(p, id)
	if changed || err != nil {
		req.Tell(p, err)
	}
	return changed, err
}

// parkedEnd returns how many messages are parked, and the id of the last one.
func (t *Transport) parkedEnd(ctx context.Context, op, queue string) (total int, last string, err error) {
	newest, err := call(ctx, t, op, func(ctx context.Context) ([]entry, error) {
		return readEntries(t.client.Do(ctx, "XREVRANGE", t.keys.parked(queue), "+", "-", "COUNT", 1))
	})
	if err != nil || len(newest) == 0 {
		return 0, "", err
	}
	n, err := call(ctx, t, op, func(ctx context.Context) (int64, error) { return t.client.XLen(ctx, t.keys.parked(queue)).Result() })
	return int(n), newest[0].id, err
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
