package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// The parked messages of a queue are a compacted log. A record without a value deletes the one before it with its key.
// Each call reads the whole log.

// parkedRecord is a parked message and where it stands.
type parkedRecord struct {
	admin.Parked
	record *kgo.Record
}

// ParkedDepth implements admin.ParkedQueue.
func (t *Transport) ParkedDepth(ctx context.Context, queue string) (int, error) {
	list, err := t.listParked(ctx, "count parked", queue)
	return len(list), err
}

// CountParked implements admin.ParkedQueue.
func (t *Transport) CountParked(ctx context.Context, queue string) (map[waybill.Reason]int, error) {
	return t.parkedOf().Count(ctx, queue)
}

// InspectParked implements admin.ParkedQueue.
func (t *Transport) InspectParked(ctx context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	return t.parkedOf().Inspect(ctx, queue, f)
}

// ListParked implements admin.ParkedQueue; oldest first.
func (t *Transport) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	return t.parkedOf().List(ctx, queue, f, limit)
}

func (t *Transport) parkedOf() admin.ParkedReader {
	return admin.ParkedReader{Adapter: "waybill/kafka", Walk: func(ctx context.Context, op, queue string, want int, fn func(*admin.Parked) int) error {
		list, err := t.listParked(ctx, op, queue)
		for i := 0; i < len(list) && want > 0; i++ {
			want = fn(&list[i].Parked)
		}
		return err
	}}
}

// listParked returns the messages that are parked for queue, oldest first.
func (t *Transport) listParked(ctx context.Context, op, queue string) ([]parkedRecord, error) {
	if t.life.Err() != nil {
		return nil, closed(op)
	}
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	topic := t.opts.parked(queue)
	topics, err := t.admin.ListTopics(ctx, topic)
	if err != nil {
		return nil, t.link.because(op, err)
	}
	switch err := topics[topic].Err; {
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.InvalidTopicException):
		return nil, fail(op, waybill.ClassRejected, waybill.ReasonNone, fmt.Errorf(
			"queue %q does not exist on the bus %q: subscribe to it first (%w)", queue, t.opts.Bus, waybill.ErrNotFound))
	case err != nil:
		return nil, classify(op, err)
	}
	starts, err := t.admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, t.link.because(op, err)
	}
	ends, err := t.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = errors.Join(starts.Error(), ends.Error())
	}
	if err != nil {
		return nil, t.link.because(op, err)
	}
	start, _ := starts.Lookup(topic, 0)
	end, _ := ends.Lookup(topic, 0)
	var list []parkedRecord
	places := map[string]int{}
	err = t.scan(ctx, op, topic, start.Offset, end.Offset, func(rec *kgo.Record) bool {
		key := string(rec.Key)
		if at, ok := places[key]; ok {
			list[at].record = nil
			delete(places, key)
		}
		if rec.Value != nil {
			places[key] = len(list)
			list = append(list, parkedRecord{record: rec})
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(p parkedRecord) bool { return p.record == nil })
	for i := range list {
		rec := list[i].record
		when, err := time.Parse(time.RFC3339Nano, get(rec, headerParkedAt))
		if err != nil {
			when = rec.Timestamp
		}
		list[i].Parked = admin.Parked{
			Envelope: parkedEnvelope(rec), Position: i + 1, Queue: queue, Reason: waybill.Reason(get(rec, headerReason)), Error: get(rec, headerError),
			Attempts: int(number(rec, headerAttempt)), At: when,
		}
	}
	return list, nil
}

// parkedEnvelope is decode for a record whose key is not the message's.
func parkedEnvelope(rec *kgo.Record) waybill.Envelope {
	bare := *rec
	bare.Key = nil
	return decode(&bare)
}

// ReplayParked implements admin.ParkedQueue. Replays by one transport take turns.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	if err := waybill.Invalid("waybill/kafka: replay parked", req.Problems()...); err != nil {
		return 0, err
	}
	t.replaying.Lock()
	defer t.replaying.Unlock()
	return t.changeParked(ctx, "replay parked", &req, func(p *parkedRecord, body []byte) *kgo.Record {
		rec := copyOf(t.opts.retry(req.Queue), p.record)
		rec.Key, rec.Value = nil, body
		if key := p.Envelope.Key; key != "" {
			rec.Key = []byte(key)
		}
		return rec
	})
}

// PurgeParked implements admin.ParkedQueue.
func (t *Transport) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	if err := admin.CheckPurgeParked("waybill/kafka: purge parked", &req); err != nil {
		return 0, err
	}
	return t.changeParked(ctx, "purge parked", &req, nil)
}

// changeParked does what a request asks for to each message, and then deletes it. A nil replay only deletes.
func (t *Transport) changeParked(
	ctx context.Context, op string, req *admin.ParkedRequest, replay func(p *parkedRecord, body []byte) *kgo.Record,
) (done int, err error) {
	list, err := t.listParked(ctx, op, req.Queue)
	if err != nil {
		return 0, err
	}
	started := time.Now()
	for i := range list {
		p := &list[i]
		now := time.Now()
		if req.Progress != nil {
			req.Progress(p.Position, len(list))
		}
		if !req.Filter.Matches(&p.Parked) || replay != nil && p.Envelope.Expired(now) {
			continue
		}
		if err := pause(ctx, req.Pace(done, started, now)); err != nil {
			return done, classify(op, err)
		}
		body, err := p.record.Value, error(nil)
		if req.Edit != nil {
			if body, err = req.Edit(p.Parked); err != nil { // it stays
				req.Tell(&p.Parked, err)
				continue
			}
		}
		var records []*kgo.Record
		if replay != nil {
			records = append(records, replay(p, body))
		}
		records = append(records, &kgo.Record{Topic: p.record.Topic, Key: p.record.Key})
		for _, rec := range records { // it is deleted after its copy is stored
			if err = t.store(ctx, op, rec); err != nil {
				break
			}
		}
		req.Tell(&p.Parked, err)
		if err != nil {
			return done, err
		}
		if done++; req.Limit > 0 && done >= req.Limit {
			break
		}
	}
	return done, nil
}

// store publishes one record, and waits.
func (t *Transport) store(ctx context.Context, op string, rec *kgo.Record) error {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	if err := t.open(ctx); err != nil {
		return err
	}
	c := newCall()
	res := make(core.Results, 1)
	f := t.send(ctx, "", &flight{call: c, record: rec})
	c.sent()
	t.await(ctx, c, []*flight{f}, res)
	if err := res[0]; err != nil {
		return classify(op, err)
	}
	return nil
}
