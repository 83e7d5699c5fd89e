package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A stream with interest retention confirms a message also if no consumer wants it, and drops it. So the publisher
// knows the bindings of all queues, and refuses an unroutable message itself. It asks for them every three seconds, and
// sooner for a topic without a queue. Messages are sent without waiting, and the confirms awaited together.
//
// A message that is sent again since its result is unknown has an id by which the server drops all repeats but the
// first, for as long as the stream's duplicate window is. The first try has none: ids cost the server memory.

// headerRoom is what max_payload keeps for names, escapes and the headers of a copy.
const (
	headerRoom = 32 << 10
	copyRoom   = 8 << 10
	maxHeaders = 64 << 10 // the server's limit for the headers of a message in a stream
)

// Traits declares the publisher's promises.
func (t *Transport) Traits() core.PublisherTraits {
	limits, _ := t.bounds(t.current.Load())
	return core.PublisherTraits{
		KeyOrder: core.KeyOrderSerial, Confirmed: true, Durable: true, Synced: t.opts.synced(), DetectsUnroutable: true,
		TwoCopiesAtMost: true,
		MaxMessageBytes: max(limits.room(), 1),
	}
}

// Publish implements core.Publisher.
func (t *Transport) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	const op = "publish"
	s := t.current.Load()
	if t.ended() || s.nc.IsClosed() && t.dialled == "" {
		return core.AllFailed(len(batch), closed(op))
	}
	limits, err := t.bounds(s)
	if err != nil {
		return core.AllFailed(len(batch), err)
	}
	res := make(core.Results, len(batch))
	sent, ids := make([]jetstream.PubAckFuture, len(batch)), make([]string, len(batch))
	var subject string
	var bound bool
	for i := range batch {
		e := &batch[i]
		if i == 0 || e.Topic != batch[i-1].Topic {
			subject = t.topics + escapeTopic(e.Topic)
			bound, err = t.routable(ctx, subject)
		}
		m := encode(subject, e)
		if ids[i] = t.repeats.ID(e); ids[i] != "" {
			m.Header[nats.MsgIdHdr] = []string{ids[i]}
		}
		size, room := e.Size(), limits.room()
		near := 5*size+64*len(e.Headers) > room // a byte becomes five at most, by escaping
		if size > room || near && m.Size()-len(subject) > limits.bytes-copyRoom {
			res[i] = limits.tooLarge(e, m.Size()-len(subject))
			continue
		}
		escaped := 5*(size-len(e.Body)) + 64*(len(e.Headers)+16) // at most
		if escaped > maxHeaders-copyRoom && m.Size()-len(subject)-len(m.Data) > maxHeaders-copyRoom {
			res[i] = fail(op, waybill.ClassPermanent, waybill.ReasonTooLarge, fmt.Errorf(
				"topic %q: the headers have %d bytes; at most %d are allowed, which leaves room for a retry: put them into the body",
				e.Topic, m.Size()-len(subject)-len(m.Data), maxHeaders-copyRoom))
			continue
		}
		switch {
		case err != nil:
			res[i] = err
		case !bound:
			res[i] = fail(op, waybill.ClassRejected, waybill.ReasonUnroutable, fmt.Errorf("topic %q: %w: bind one", e.Topic, waybill.ErrUnroutable))
		default:
			sent[i], res[i] = t.send(ctx, s, m)
		}
	}
	t.await(ctx, s, sent, res)
	for i := range batch {
		if e := &batch[i]; sent[i] != nil && waybill.ReasonOf(res[i]) == waybill.ReasonTooLarge {
			res[i] = fail(op, waybill.ClassPermanent, waybill.ReasonTooLarge, fmt.Errorf("topic %q: the message has %d bytes: %w", e.Topic, e.Size(), errors.Unwrap(res[i])))
		}
		t.repeats.Note(&batch[i], ids[i], res[i])
	}
	return res
}

// send sends m on s and does not wait. The client does not send again by itself: that would be out of order.
func (t *Transport) send(ctx context.Context, s *session, m *nats.Msg) (jetstream.PubAckFuture, error) {
	switch {
	case ctx.Err() != nil:
		return nil, classify("publish", context.Cause(ctx))
	case t.ended() || s.nc.IsClosed() && t.dialled == "":
		return nil, closed("publish")
	case !s.nc.IsConnected():
		return nil, outage("publish", nats.ErrDisconnected)
	}
	f, err := s.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0))
	if err != nil {
		return nil, classify("publish", err)
	}
	return f, nil
}

// await fills res with the results of sent on s; nil = not sent.
func (t *Transport) await(ctx context.Context, s *session, sent []jetstream.PubAckFuture, res core.Results) {
	for i, f := range sent {
		if f == nil {
			continue
		}
		select {
		case <-f.Ok():
			continue
		default:
		}
		select {
		case <-f.Ok():
		case err := <-f.Err():
			res[i] = classify("publish", err)
		case <-ctx.Done():
			res[i] = classify("publish", context.Cause(ctx))
		case <-s.gone:
			if res[i] = s.lost("publish"); t.ended() {
				res[i] = closed("publish")
			}
		case <-t.done:
			res[i] = closed("publish")
		}
	}
}

const (
	routesAge  = 3 * time.Second        // after which the queues are asked for again
	routesRest = 100 * time.Millisecond // between two questions because of a topic without a queue
)

// routable reports whether a queue gets what is published to subject. One call asks at a time, and the others wait for
// its answer, but not longer than their contexts.
func (t *Transport) routable(ctx context.Context, subject string) (bool, error) {
	r := &t.routes
	select {
	case r.lock <- struct{}{}:
		defer func() { <-r.lock }()
	case <-ctx.Done():
		return false, classify("publish", context.Cause(ctx))
	case <-t.done:
		return false, closed("publish")
	}
	age := time.Since(r.at)
	if r.known == nil || age > routesAge || r.stale.Load() || age > routesRest && !r.fit(subject) {
		if err := t.learnRoutes(ctx); err != nil {
			return false, err
		}
	}
	return r.fit(subject), nil
}

// fit reports whether subject fits a pattern of r, and remembers the answer.
func (r *routes) fit(subject string) bool {
	ok, known := r.known[subject]
	if known {
		return ok
	}
	for _, p := range r.patterns {
		if ok = fits(p, subject); ok {
			break
		}
	}
	if len(r.known) < 10_000 {
		r.known[subject] = ok
	}
	return ok
}

// learnRoutes asks for the queues. The lock is held, so one call asks for all.
func (t *Transport) learnRoutes(ctx context.Context) error {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	r := &t.routes
	r.stale.Store(false)
	asked := time.Now()
	stream, err := t.stream(ctx, t.opts.Bus)
	if err != nil {
		r.stale.Store(true)
		return err
	}
	var list []string
	consumers := stream.ListConsumers(ctx)
	for info := range consumers.Info() {
		list = append(list, t.wanted(&info.Config)...)
	}
	if err := consumers.Err(); err != nil {
		r.stale.Store(true)
		return classify("list the queues", err)
	}
	r.at, r.patterns, r.known = asked, list, map[string]bool{}
	return nil
}
