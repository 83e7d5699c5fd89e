package nats

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// ParkedDepth implements admin.ParkedQueue.
func (t *Transport) ParkedDepth(ctx context.Context, queue string) (int, error) {
	_, total, _, err := t.openParked(ctx, queue)
	return total, err
}

// CountParked implements admin.ParkedQueue.
func (t *Transport) CountParked(ctx context.Context, queue string) (map[waybill.Reason]int, error) {
	return t.parkedOf().Count(ctx, queue)
}

// InspectParked implements admin.ParkedQueue.
func (t *Transport) InspectParked(ctx context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	return t.parkedOf().Inspect(ctx, queue, f)
}

// ListParked implements admin.ParkedQueue. It makes a request for each message that it looks at.
func (t *Transport) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	return t.parkedOf().List(ctx, queue, f, limit)
}

func (t *Transport) parkedOf() admin.ParkedReader {
	return admin.ParkedReader{Adapter: "waybill/nats", Walk: func(ctx context.Context, _, queue string, _ int, fn func(*admin.Parked) int) error {
		return t.walk(ctx, queue, func(p *parkedMsg) (bool, error) { return fn(&p.Parked) > 0, nil })
	}}
}

// ReplayParked implements admin.ParkedQueue. Replays by one transport take turns.
func (t *Transport) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	if err := waybill.Invalid("waybill/nats: replay parked", req.Problems()...); err != nil {
		return 0, err
	}
	t.replaying.Lock()
	defer t.replaying.Unlock()
	name := escapeQueue(req.Queue)
	return t.change(ctx, &req, func(p *parkedMsg, body []byte) error {
		// Without the consumer the stream would forget the copy.
		if _, err := t.js.Consumer(ctx, t.opts.Bus, name); err != nil {
			return noQueue("replay parked", req.Queue, err)
		}
		res := make(core.Results, 1)
		f, err := t.send(ctx, copyOf(t.queues+name, &p.Envelope, p.raw.Header, body))
		if err != nil {
			return err
		}
		t.await(ctx, []jetstream.PubAckFuture{f}, res)
		return res[0]
	})
}

// PurgeParked implements admin.ParkedQueue.
func (t *Transport) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	if err := admin.CheckPurgeParked("waybill/nats: purge parked", &req); err != nil {
		return 0, err
	}
	return t.change(ctx, &req, nil)
}

// change does what a request asks for to each message, and then deletes it. A nil replay only deletes.
func (t *Transport) change(ctx context.Context, req *admin.ParkedRequest, replay func(p *parkedMsg, body []byte) error) (done int, err error) {
	started := time.Now()
	err = t.walk(ctx, req.Queue, func(p *parkedMsg) (bool, error) {
		now := time.Now()
		if req.Progress != nil {
			req.Progress(p.Position, p.total)
		}
		if !req.Filter.Matches(&p.Parked) || replay != nil && p.Envelope.Expired(now) {
			return true, nil
		}
		timer := time.NewTimer(req.Pace(done, started, now))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false, classify("parked", context.Cause(ctx))
		}
		body, err := p.raw.Data, error(nil)
		if req.Edit != nil {
			if body, err = req.Edit(p.Parked); err != nil { // it stays
				req.Tell(&p.Parked, err)
				return true, nil
			}
		}
		if replay != nil {
			err = replay(p, body)
		}
		if err == nil {
			if err = p.stream.DeleteMsg(ctx, p.raw.Sequence); err == nil {
				done++
			} else {
				err = classify("delete parked", err)
			}
		}
		req.Tell(&p.Parked, err)
		return req.Limit == 0 || done < req.Limit, err
	})
	return done, err
}

// parkedMsg is a parked message on a walk.
type parkedMsg struct {
	admin.Parked
	raw    *jetstream.RawStreamMsg
	stream jetstream.Stream
	total  int
}

// walk calls fn for the messages that were parked for queue at the beginning, oldest first, until fn returns false or
// an error.
func (t *Transport) walk(ctx context.Context, queue string, fn func(*parkedMsg) (more bool, err error)) error {
	s, total, last, err := t.openParked(ctx, queue)
	if err != nil {
		return err
	}
	subject := t.parked + escapeQueue(queue)
	for seq, place := uint64(1), 1; ; place++ {
		raw, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			return nil
		case err != nil:
			return classify("look at parked", err)
		case raw.Sequence > last:
			return nil
		}
		seq = raw.Sequence + 1
		at, err := time.Parse(time.RFC3339Nano, raw.Header.Get(headerParkedAt))
		if err != nil {
			at = raw.Time
		}
		more, err := fn(&parkedMsg{Parked: admin.Parked{
			Envelope: decode("", raw.Header, slices.Clone(raw.Data)), Position: place, Queue: queue,
			Reason: waybill.Reason(raw.Header.Get(headerReason)), Error: unescape(raw.Header.Get(headerError)),
			Attempts: int(min(number(raw.Header, headerAttempt), math.MaxInt32)), At: at,
		}, raw: raw, stream: s, total: total})
		if err != nil || !more {
			return err
		}
	}
}

// openParked returns the stream of parked messages, how many there are for queue, and the last one's number or a higher
// one. A queue without a consumer and without parked messages does not exist.
func (t *Transport) openParked(ctx context.Context, queue string) (s jetstream.Stream, total int, last uint64, err error) {
	if t.ended() {
		return nil, 0, 0, closed("parked")
	}
	if s, err = t.stream(ctx, t.opts.Bus+"-parked"); err != nil {
		return nil, 0, 0, err
	}
	subject := t.parked + escapeQueue(queue)
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(subject))
	if err != nil {
		return nil, 0, 0, classify("count parked", err)
	}
	if total = int(min(info.State.Subjects[subject], math.MaxInt32)); total == 0 {
		if _, err := t.js.Consumer(ctx, t.opts.Bus, escapeQueue(queue)); err != nil {
			return nil, 0, 0, noQueue("parked", queue, err)
		}
	}
	return s, total, info.State.LastSeq, nil
}

// noQueue is the error of a queue whose consumer cannot be found.
func noQueue(op, queue string, err error) error {
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fail(op, waybill.ClassRejected, waybill.ReasonNone, fmt.Errorf(
			"queue %q does not exist: subscribe to it first (%w)", queue, waybill.ErrNotFound))
	}
	return classify(op, err)
}
