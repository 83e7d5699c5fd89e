package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// copyRoom is what a record leaves free for the headers of its copies, and headerRoom for names besides.
const (
	copyRoom   = 8 << 10
	headerRoom = 16 << 10
)

// Traits declares the publisher's promises.
func (t *Transport) Traits() core.PublisherTraits {
	return core.PublisherTraits{
		KeyOrder: core.KeyOrderSerial, Confirmed: true, Durable: true, Synced: t.settings().synced, KeepsUnread: true, TwoCopiesAtMost: true,
		MaxMessageBytes: max(t.settings().maxMessage-headerRoom, 1),
	}
}

// lookEvery bounds how often messages that are too large have the settings of the bus read again.
const lookEvery = time.Second

// maxFlights and maxFlightBytes bound what the client holds.
const (
	maxFlights     = 100_000
	maxFlightBytes = 256 << 20
)

// call is one Publish: its flights end together.
type call struct {
	left atomic.Int64
	done chan struct{}
}

// flight is a record that the client holds until a broker has answered. The client cannot take it back, so a flight can
// outlive its call. The same message that is published again joins it: a second record would be a second copy.
type flight struct {
	call   *call
	record *kgo.Record
	alone  bool          // no other record shares its request
	err    error         // valid after ended
	ended  atomic.Bool   // its result is known
	waits  int           // how many calls wait for it; the transport's mu guards it
	joined chan struct{} // closed at the end; the transport's mu guards it; nil = nobody has joined
}

// newCall returns a call that ends after sent, when all of its flights have ended.
func newCall() *call {
	c := &call{done: make(chan struct{})}
	c.left.Store(1)
	return c
}

func (c *call) sent() {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

// Publish implements core.Publisher.
func (t *Transport) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	const op = "publish"
	if t.life.Err() != nil {
		return core.AllFailed(len(batch), closed(op))
	}
	if ctx.Err() != nil {
		return core.AllFailed(len(batch), classify(op, context.Cause(ctx)))
	}
	if err := t.open(ctx); err != nil {
		return core.AllFailed(len(batch), err)
	}
	t.mu.Lock()
	t.late.expire(time.Now())
	t.mu.Unlock()
	res := make(core.Results, len(batch))
	flights := make([]*flight, len(batch))
	own := make([]flight, len(batch))
	c := newCall()
	for i := range batch {
		e := &batch[i]
		rec := encode(t.opts.Bus, e)
		if res[i] = t.tooLarge(ctx, e, rec); res[i] != nil {
			continue
		}
		own[i].call, own[i].record = c, rec
		flights[i] = t.send(ctx, e.ID, &own[i])
	}
	c.sent()
	t.await(ctx, c, flights, res)
	t.again(ctx, func(i int) string { return batch[i].ID }, flights, res)
	for i, err := range res {
		if f := flights[i]; f != nil && waybill.ReasonOf(err) == waybill.ReasonTooLarge {
			s := t.lookAgain(ctx) // messages like this one are not sent any more
			res[i] = t.overLimit(&batch[i], f.record, s)
		}
	}
	return res
}

// tooLarge returns an error if a record cannot be stored, or its copies could not. The brokers' limit can have been
// raised.
func (t *Transport) tooLarge(ctx context.Context, e *waybill.Envelope, rec *kgo.Record) error {
	fits := func(s settings) bool {
		return e.Size() <= s.maxMessage-headerRoom && sizeOf(rec) <= s.maxMessage-copyRoom
	}
	if fits(t.settings()) {
		return nil
	}
	if s := t.lookAgain(ctx); !fits(s) {
		return t.overLimit(e, rec, s)
	}
	return nil
}

func (t *Transport) overLimit(e *waybill.Envelope, rec *kgo.Record, s settings) error {
	return fail("publish", waybill.ClassPermanent, waybill.ReasonTooLarge, fmt.Errorf(
		"topic %q: the message has %d bytes, with its headers %d; max.message.bytes of the log %q is %d, which leaves %d of them: "+
			"raise it (message.max.bytes of the brokers is its default), or send a reference",
		e.Topic, e.Size(), sizeOf(rec), t.opts.Bus, s.maxMessage, s.maxMessage-headerRoom))
}

// lookAgain returns the settings of the bus. It reads them, but not more often than once in lookEvery, and not if
// another call does.
func (t *Transport) lookAgain(ctx context.Context) settings {
	if t.looking.TryLock() {
		defer t.looking.Unlock()
		if time.Since(t.looked) >= lookEvery {
			ctx, cancel := t.bounded(ctx)
			defer cancel()
			if s, err := t.look(ctx); err == nil {
				t.known.Store(&s)
			}
			t.looked = time.Now()
		}
	}
	return t.settings()
}

// send hands f to the client, or joins a flight of the same message. An empty id joins nothing.
func (t *Transport) send(ctx context.Context, id string, f *flight) *flight {
	if id != "" {
		t.mu.Lock()
		if old := t.flights[id]; old != nil && sameRecord(old.record, f.record) {
			old.join()
			t.mu.Unlock()
			return old
		}
		if t.late.take(id, f.record, time.Now()) {
			t.mu.Unlock()
			f.ended.Store(true)
			return f
		}
		f.waits = 1
		t.flights[id] = f
		t.mu.Unlock()
	}
	f.call.left.Add(1)
	client := t.client
	if f.alone {
		var err error
		if client, err = t.soloist(ctx); err != nil {
			f.alone = false
			t.landed(id, f, err)
			return f
		}
	}
	for t.client.BufferedProduceRecords() >= maxFlights || t.client.BufferedProduceBytes() >= maxFlightBytes {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			t.landed(id, f, err)
			return f
		}
	}
	// The caller's context would take back, with this record, the others of its batch.
	client.Produce(t.life, f.record, func(_ *kgo.Record, err error) { t.landed(id, f, err) })
	return f
}

// join lets another call wait for f. The caller holds mu.
func (f *flight) join() {
	f.waits++
	if f.joined == nil && !f.ended.Load() {
		f.joined = make(chan struct{})
	}
}

// join lets another call wait for f.
func (t *Transport) join(f *flight) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.join()
}

// landed ends a flight.
func (t *Transport) landed(id string, f *flight, err error) {
	t.mu.Lock()
	if t.flights[id] == f {
		delete(t.flights, id)
	}
	f.err = err
	f.ended.Store(true)
	if f.joined != nil {
		close(f.joined)
	}
	if f.waits == 0 && err == nil && id != "" {
		t.late.add(id, f.record, time.Now())
	}
	t.mu.Unlock()
	if f.alone {
		<-t.soloing
	}
	f.call.sent()
}

// soloist returns the client that sends one record at a time, so that it is alone in its request, however many calls
// there are. The caller's record has it until it has landed.
func (t *Transport) soloist(ctx context.Context) (*kgo.Client, error) {
	select {
	case t.soloing <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-t.life.Done():
		return nil, closed("publish")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	switch {
	case t.life.Err() != nil:
		err = closed("publish")
	case t.solo == nil:
		t.solo, err = t.newProducer(maxRequest)
	}
	if err != nil {
		<-t.soloing
		return nil, err
	}
	return t.solo, nil
}

// leave ends a call's wait for f, unless its result has come.
func (t *Transport) leave(f *flight) (ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !f.ended.Load() {
		f.waits--
	}
	return f.ended.Load()
}

// await fills res with the results of flights, those of c and those that it joined; nil = not sent.
func (t *Transport) await(ctx context.Context, c *call, flights []*flight, res core.Results) {
	wait := func(done <-chan struct{}) {
		select {
		case <-done:
		case <-ctx.Done():
		case <-t.life.Done():
		}
	}
	wait(c.done)
	unknown := map[string]error{} // by topic of Kafka
	for i, f := range flights {
		if f == nil {
			continue
		}
		if f.call != c && !f.ended.Load() {
			wait(f.joined)
		}
		ended := f.ended.Load() || t.leave(f)
		switch {
		case ended && f.err == nil:
		case ended && topicUnknown(f.err):
			topic := f.record.Topic
			if unknown[topic] == nil {
				unknown[topic] = t.unknown(ctx, topic, f.err)
			}
			res[i] = unknown[topic]
		case ended:
			res[i] = classify("publish", f.err)
		case t.life.Err() != nil:
			res[i] = closed("publish")
		default:
			res[i] = t.link.because("publish", context.Cause(ctx))
		}
	}
}

// unknown returns the error of a record whose topic was deleted. The client takes no other topic of the same name
// before it has forgotten the first one.
func (t *Transport) unknown(ctx context.Context, topic string, err error) error {
	const op = "publish"
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	if errors.Is(err, kerr.UnknownTopicID) {
		t.client.PurgeTopicsFromProducing(topic)
		return outage(op, fmt.Errorf("the topic %q was deleted, and made anew (%w)", topic, err))
	}
	if list, listErr := t.admin.ListTopics(ctx, topic); listErr == nil && errors.Is(list[topic].Err, kerr.UnknownTopicOrPartition) {
		return misconfigured(op, "the topic %q does not exist: it was deleted; declare the topology again (%w)", topic, err)
	}
	return classify(op, err)
}

// again sends each record alone whose batch a broker has refused: the cause can be another record of the batch. The
// flights become those of the records alone. id returns that of a message.
func (t *Transport) again(ctx context.Context, id func(i int) string, flights []*flight, res core.Results) {
	for i, f := range flights {
		if res[i] == nil || f == nil || !f.ended.Load() || !refused(f.err) {
			continue
		}
		c := newCall()
		flights[i] = t.send(ctx, id(i), &flight{call: c, alone: true, record: &kgo.Record{
			Topic: f.record.Topic, Key: f.record.Key, Value: f.record.Value, Headers: f.record.Headers,
		}})
		c.sent()
		res[i] = nil
		t.await(ctx, c, flights[i:i+1], res[i:i+1])
	}
}
