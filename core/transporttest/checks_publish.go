package transporttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var publishChecks = []named{
	{"round-trip-every-field", ofEither, roundTripFull},
	{"round-trip-minimal", ofEither, roundTripMinimal},
	{"round-trip-unicode", ofEither, roundTripUnicode},
	{"round-trip-headers", ofEither, roundTripHeaders},
	{"round-trip-bodies", ofEither, roundTripBodies},
	{"publish-keeps-nothing", ofEither, publishKeepsNothing},
	{"publish-empty-batch", ofPublisher, publishEmpty},
	{"publish-unroutable", ofPublisher, publishUnroutable},
	{"publish-unsendable", ofPublisher, publishUnsendable},
	{"publish-thousand", ofPublisher, publishThousand},
	{"publish-concurrently", ofPublisher, publishConcurrently},
	{"publish-cancelled", ofPublisher, publishCancelled},
	{"key-order-batch", ofEither, keyOrderBatch},
	{"key-order-one-by-one", ofEither, keyOrderSerial},
	{"key-order-prefix", ofPublisher, keyOrderPrefix},
	{"publish-unroutable-alone", ofPublisher, publishUnroutableAlone},
	{"unroutable-then-bound", ofPublisher, unroutableThenBound},
	{"keeps-unread", ofPublisher, keepsUnread},
	{"publish-same-id-again", ofPublisher, publishSameIDAgain},
	{"publish-expired", ofPublisher, publishExpired},
}

// An envelope arrives with every field as it was published, as attempt 1 of the queue, without a redelivery.
func roundTripFull(k *kit) {
	r, name := k.queue("placed")
	want := full(name + ".placed")
	k.publish(want)
	d := k.receive(r, 1)[0]
	k.same(want, d.Envelope, "envelope")
	switch {
	case d.Err != nil:
		k.fail("Delivery.Err is %w", d.Err)
	case d.Queue != name:
		k.fail("Delivery.Queue is %q, want %q", d.Queue, name)
	case d.Attempt != 1:
		k.fail("Delivery.Attempt is %d, want 1", d.Attempt)
	case d.Redeliveries > 0 || d.Redeliveries < -1 || k.sub.CountsRedeliveries && d.Redeliveries != 0:
		k.fail("Delivery.Redeliveries of a first delivery is %d", d.Redeliveries)
	}
	k.settle(r, core.AckDone(d))
}

// An envelope with nothing but an id and a topic arrives so: nothing is filled in.
func roundTripMinimal(k *kit) {
	r, name := k.queue("a")
	want := waybill.Envelope{ID: "only-an-id-" + name, Topic: name + ".a"}
	k.publish(want)
	d := k.consume(r, 1)[0]
	k.failIf(d.Err != nil, "Delivery.Err is %w", d.Err)
	k.same(want, d.Envelope, "envelope")
}

// Any Unicode text arrives in every field that may hold it.
func roundTripUnicode(k *kit) {
	const text = "größe 日本 🚚 \"quoted\" 50%, a=b;c"
	name := k.name()
	r := k.subscribe(name, name+".größe.日本")
	want := waybill.Envelope{
		ID: "id-" + text, Topic: name + ".größe.日本", Type: text, Source: "/gr%C3%B6%C3%9Fe;a=b,c/(d)?x=1&y=%22#z", Subject: text, Key: text, Tenant: text,
		ContentType: "text/plain; charset=utf-8", CorrelationID: text, CausationID: text, RunID: text, Lineage: []string{
			text,
			"a,b", "%2C",
		},
		Headers: map[string]string{"größe-日本": text}, Body: []byte(text),
	}
	k.publish(want)
	k.same(want, k.consume(r, 1)[0].Envelope, "envelope")
}

// 64 headers with legal names and values, up to 8 KiB long, arrive as they were, upper and lower case apart.
func roundTripHeaders(k *kit) {
	r, name := k.queue("a")
	want := message(name+".a", 0)
	want.Headers = map[string]string{
		"name": "lower", "Name": "title", "NAME": "upper", "empty": "", "spaces": "  kept  ", "lines": "one\r\ntwo\n\tthree", "long": strings.Repeat("x", 8<<10),
		"number": "42", "true": "true", "null": "null", "json": `{"a":[1,2]}`, "key": "not the key", "id": "not the id", "topic": "not the topic",
		"type": "not the type", "time": "not the time", "a.b/c:d e": "punctuation", strings.Repeat("n", 200): "long name",
	}
	for i := len(want.Headers); i < 64; i++ {
		want.Headers[fmt.Sprintf("filler-%d", i)] = strconv.Itoa(i)
	}
	k.publish(want)
	k.same(want, k.consume(r, 1)[0].Envelope, "envelope")
}

// Any bytes arrive as a body: none, binary ones, and as many as MaxMessageBytes allows, up to 1 MiB.
func roundTripBodies(k *kit) {
	r, name := k.queue("a")
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	size := 1 << 20
	if k.pub.MaxMessageBytes > 0 {
		m := message(name+".a", 9)
		m.ContentType, m.Body = "application/octet-stream", nil
		size = min(size, k.pub.MaxMessageBytes-m.Size())
	}
	for i, body := range [][]byte{
		nil,
		{},
		{0},
		binary, bytes.Repeat([]byte("\xff\xfe"), 100),
		bytes.Repeat(binary, (size+255)/256)[:size],
	} {
		want := message(name+".a", i)
		want.ContentType, want.Body = "application/octet-stream", body
		k.publish(want)
		k.same(want, k.consume(r, 1)[0].Envelope, fmt.Sprintf("message with a body of %d bytes", len(body)))
	}
}

// The adapter keeps no memory of its callers, and shares none between them.
func publishKeepsNothing(k *kit) {
	name := k.name()
	a, b := k.subscribe(name+"a", name+".x"), k.subscribe(name+"b", name+".x")
	want := full(name + ".x")
	sent := want.Clone()
	k.publish(sent)
	spoil := func(e *waybill.Envelope) {
		e.Body[0], e.Lineage[0], e.Headers["region"] = '!', "spoilt", "spoilt"
	}
	spoil(&sent)
	first := k.consume(a, 1)[0]
	k.same(want, first.Envelope, "after the caller of Publish changed its copy")
	spoil(&first.Envelope)
	second := k.receive(b, 1)[0]
	k.same(want, second.Envelope, "after the consumer of another queue changed its copy")
	spoil(&second.Envelope)
	k.settle(b, core.AckRetry(second, tier1, nil))
	k.same(want, k.consume(b, 1)[0].Envelope, "retried, after the consumer changed its copy")
}

// A publish of nothing has no results.
func publishEmpty(k *kit) {
	k.publisher.Publish(k.ctx, nil) // the guard looks at the number of results
}

// A message that no queue gets is an error that matches ErrUnroutable, and costs its neighbours nothing.
//
// The check sends a mix whose pattern is different backwards.
func publishUnroutable(k *kit) {
	k.needs(k.pub.DetectsUnroutable, "PublisherTraits.DetectsUnroutable")
	r, name := k.queue("bound")
	batch := make([]waybill.Envelope, 0, 10)
	var want []waybill.Envelope
	for i := range 10 {
		m := message(name+".unbound", i)
		if i == 0 || i == 3 || i == 4 || i == 7 {
			m = message(name+".bound", i)
			want = append(want, m)
		}
		batch = append(batch, m)
	}
	size := k.batch(len(batch))
	for len(batch) > 0 {
		part := batch[:min(size, len(batch))]
		batch = batch[len(part):]
		for i, err := range k.send(part) {
			routable := strings.HasSuffix(part[i].Topic, ".bound")
			switch {
			case routable:
				k.must("a neighbour of an unroutable message", err)
			case err == nil:
				k.fail("a message that no queue is bound for was a success (slot %d)", i)
			case !errors.Is(err, waybill.ErrUnroutable):
				k.fail("the error of an unroutable message does not match waybill.ErrUnroutable: %w", err)
			case waybill.ClassOf(err) != waybill.ClassRejected:
				k.fail("an unroutable message is of class %s, want rejected, because a queue can be bound soon: %w",
					waybill.ClassOf(err), err)
			}
		}
	}
	k.exactly(want, k.consume(r, len(want)))
	k.nothing(r, "all routable messages were consumed")
}

// A message that can never be sent is permanent or rejected, and costs its neighbours nothing.
//
// The check sends messages that no retry can help beside good ones.
func publishUnsendable(k *kit) {
	k.needs(k.pub.MaxMessageBytes > 0 && k.pub.MaxMessageBytes <= 16<<20, "PublisherTraits.MaxMessageBytes of at most 16 MiB")
	r, name := k.queue("a")
	large := message(name+".a", 0)
	large.Body = make([]byte, k.pub.MaxMessageBytes+1)
	headers := message(name+".a", 1) // too large by its headers
	headers.Headers = map[string]string{"more": strings.Repeat("x", 1000)}
	headers.Body = make([]byte, max(k.pub.MaxMessageBytes-500, 0))
	for i, m := range []waybill.Envelope{large, headers} {
		before, after := message(name+".a", 10+i), message(name+".a", 20+i)
		batch := []waybill.Envelope{before, m, after}
		if k.batch(len(batch)) < len(batch) {
			batch = batch[1:2]
		}
		for j, err := range k.send(batch) {
			switch {
			case batch[j].ID != m.ID:
				k.must("a neighbour of a message that cannot be sent", err)
			case err == nil:
				k.fail("a message of %d bytes was a success, MaxMessageBytes is %d", m.Size(), k.pub.MaxMessageBytes)
			case waybill.ClassOf(err) != waybill.ClassPermanent && waybill.ClassOf(err) != waybill.ClassRejected:
				k.fail("a message that cannot be sent is of class %s, so it would be tried for ever: %w", waybill.ClassOf(err), err)
			}
		}
		if len(batch) > 1 {
			k.exactly([]waybill.Envelope{before, after}, k.consume(r, 2))
		}
	}
	k.publish(message(name+".a", 99))
	k.consume(r, 1)
}

// A thousand messages arrive, each once.
func publishThousand(k *kit) {
	r, name := k.queue("a")
	want := messages(name+".a", 1000)
	k.publish(want...)
	k.exactly(want, k.consume(r, len(want)))
	k.nothing(r, "all 1,000 messages were consumed")
}

// Publishes at the same time get their own results.
//
// The check mixes calls whose confirms and returns an adapter could cross.
func publishConcurrently(k *kit) {
	const calls, size = 24, 20
	r, name := k.queue("bound")
	var (
		mu   sync.Mutex
		want []waybill.Envelope
	)
	k.each(calls, func(i int) error {
		ctx, cancel := k.within()
		defer cancel()
		batch := messages(name+".bound", k.batch(size))
		for j := range batch {
			batch[j].ID = fmt.Sprintf("%s/%d/%d", name, i, j)
			if k.pub.DetectsUnroutable && (i+j)%3 == 0 {
				batch[j].Topic = name + ".unbound"
			}
		}
		res := k.publisher.Publish(ctx, batch)
		mu.Lock()
		defer mu.Unlock()
		for j, err := range res {
			switch routable := strings.HasSuffix(batch[j].Topic, ".bound"); {
			case routable && err != nil:
				return fmt.Errorf("publish: %w", err)
			case !routable && err == nil:
				return fmt.Errorf("call %d: the unroutable message in slot %d was a success", i, j)
			case routable:
				want = append(want, batch[j])
			}
		}
		return nil
	})
	k.exactly(want, k.consume(r, len(want)))
	k.nothing(r, "all messages were consumed")
}

// Under an ended context every message has a result: a success that arrives, or an outage.
func publishCancelled(k *kit) {
	r, name := k.queue("a")
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	batch := messages(name+".a", k.batch(5))
	res := k.publisher.Publish(ctx, batch)
	sent := map[string]bool{}
	for i, err := range res {
		sent[batch[i].ID] = err == nil
		if err != nil && waybill.ClassOf(err) != waybill.ClassOutage {
			k.fail("a message whose result did not come in time is of class %s, want outage, which costs no attempt: %w",
				waybill.ClassOf(err), err)
		}
	}
	k.needs(k.pub.Confirmed, "PublisherTraits.Confirmed")
	for _, d := range k.drain(r) { // what failed may have been sent all the same; what succeeded must have been
		delete(sent, d.Envelope.ID)
	}
	for id, ok := range sent {
		k.failIf(ok, "message %s was a success but did not come", id)
	}
}

// Messages of one key arrive in the order of the batch.
func keyOrderBatch(k *kit) {
	k.needs(k.pub.KeyOrder != core.KeyOrderNone, "PublisherTraits.KeyOrder")
	k.needs(k.sub.KeyOrder, "SubscriberTraits.KeyOrder")
	name := k.name()
	r := k.subscribe(name, k.everything(name, "t0", "t1")...)
	batch := keyed(name, 30)
	k.publish(batch...)
	k.inKeyOrder(batch, r)
}

// Messages of one key that are published one after the other arrive in that order.
//
// The check keeps one message of a key in flight, in several calls.
func keyOrderSerial(k *kit) {
	k.needs(k.pub.KeyOrder != core.KeyOrderNone, "PublisherTraits.KeyOrder")
	k.needs(k.sub.KeyOrder, "SubscriberTraits.KeyOrder")
	name := k.name()
	r := k.subscribe(name, k.everything(name, "t0", "t1")...)
	batch := keyed(name, 10)
	for i := range batch {
		k.publish(batch[i])
	}
	k.inKeyOrder(batch, r)
}

// A failure also fails what is behind it with its key in the same call, with ErrPredecessorFailed.
//
// The check sends three keys in one call; a message of one of them fails, and so must those of its key behind it.
func keyOrderPrefix(k *kit) {
	k.needs(k.pub.KeyOrder == core.KeyOrderPipelinedPrefix, "PublisherTraits.KeyOrder = KeyOrderPipelinedPrefix")
	k.needs(k.pub.DetectsUnroutable, "PublisherTraits.DetectsUnroutable")
	_, name := k.queue("t0", "t1")
	batch := keyed(name, 5)
	batch = batch[:k.batch(len(batch))]
	const bad = 4
	batch[bad].Topic = name + ".unbound"
	k.prefix(batch, bad)
}

// prefix sends batch, of which one message fails.
func (k *kit) prefix(batch []waybill.Envelope, bad int) {
	for i, err := range k.send(batch) {
		behind := i > bad && batch[i].Key == batch[bad].Key
		switch failed := err != nil; {
		case failed != (behind || i == bad):
			k.fail("message %d of key %s, where message %d of key %s failed: %v", i, batch[i].Key, bad, batch[bad].Key, err)
		case behind && !errors.Is(err, waybill.ErrPredecessorFailed):
			k.fail("message %d is behind one that failed, and can be sent again: want waybill.ErrPredecessorFailed, got: %w", i, err)
		}
	}
}

// keyed returns n messages of each of three keys, mixed, on changing topics.
func keyed(name string, n int) []waybill.Envelope {
	batch := make([]waybill.Envelope, 3*n)
	for i := range batch {
		batch[i] = message(fmt.Sprintf("%s.t%d", name, i%2), i)
		batch[i].Key = fmt.Sprintf("key-%d", i%3)
	}
	return batch
}

func (k *kit) inKeyOrder(sent []waybill.Envelope, r core.Receiver) {
	want, got := map[string][]string{}, map[string][]string{}
	for i := range sent {
		want[sent[i].Key] = append(want[sent[i].Key], sent[i].ID)
	}
	ds := k.consume(r, len(sent))
	k.exactly(sent, ds)
	for _, d := range ds {
		got[d.Envelope.Key] = append(got[d.Envelope.Key], d.Envelope.ID)
	}
	for key := range want {
		for i, id := range want[key] {
			k.failIf(got[key][i] != id, "%s: message %s came where %s was due", key, got[key][i], id)
		}
	}
}

// A message that no queue gets is an error that matches ErrUnroutable, also alone in its batch.
func publishUnroutableAlone(k *kit) {
	k.needs(k.pub.DetectsUnroutable, "PublisherTraits.DetectsUnroutable")
	r, name := k.queue("bound")
	for i := range 3 {
		k.unroutable(message(name+".unbound", i))
		k.publish(message(name+".bound", i))
	}
	k.consume(r, 3)
}

// unroutable publishes m, alone, which no queue gets.
func (k *kit) unroutable(m waybill.Envelope) {
	switch err := k.send([]waybill.Envelope{m})[0]; {
	case err == nil:
		k.fail("a message that no queue is bound for was a success")
	case !errors.Is(err, waybill.ErrUnroutable):
		k.fail("the error of an unroutable message does not match waybill.ErrUnroutable: %w", err)
	}
}

// A message that was unroutable arrives when it is sent again after a queue was bound.
//
// The check does what a relay does while a queue is missing. A broker that remembers ids drops the second one.
func unroutableThenBound(k *kit) {
	k.needs(k.pub.DetectsUnroutable, "PublisherTraits.DetectsUnroutable")
	name := k.name()
	m := full(name + ".late")
	k.unroutable(m)
	k.unroutable(m)
	r := k.subscribe(name, name+".late")
	k.publish(m)
	k.same(m, k.consume(r, 1)[0].Envelope, "sent again after the queue was bound")
}

// A log keeps a message that no queue gets yet for the queues to come.
func keepsUnread(k *kit) {
	k.needs(k.pub.KeepsUnread, "PublisherTraits.KeepsUnread")
	k.failIf(k.pub.DetectsUnroutable, "PublisherTraits has both KeepsUnread and DetectsUnroutable, but nothing is unroutable for a log")
	name := k.name()
	want := messages(name+".late", 3)
	k.publish(want...)
	r := k.subscribe(name, name+".late")
	k.exactly(want, k.consume(r, len(want)))
}

// A message that is sent again with its id arrives again.
//
// The check sends a message again after it was done, after it was parked, and while it waits: as a relay does after an
// unknown result, and an operator after a mistake.
func publishSameIDAgain(k *kit) {
	r, name := k.queue("a")
	m := message(name+".a", 0)
	k.publish(m)
	k.consume(r, 1)
	k.publish(m)
	d := k.receive(r, 1)[0]
	k.failIf(d.Attempt != 1 || d.Redeliveries > 0,
		"sent again after it was done, the message came as attempt %d with %d redeliveries", d.Attempt, d.Redeliveries)
	k.settle(r, core.AckReject(d, waybill.ReasonRejected, errors.New("no good")))
	k.publish(m)
	k.exactly([]waybill.Envelope{m}, k.receive(r, 1)) // and it is held
	k.publish(m)
	k.exactly([]waybill.Envelope{m}, k.consume(r, 1))
}

// An expired message is not dropped as a success: it is an error, or it arrives.
func publishExpired(k *kit) {
	r, name := k.queue("a")
	m := message(name+".a", 0)
	m.Expires = time.Now().Add(-time.Minute).UTC().Truncate(time.Second)
	after := message(name+".a", 1)
	err := k.send([]waybill.Envelope{m})[0]
	k.publish(after)
	if err != nil {
		k.exactly([]waybill.Envelope{after}, k.consume(r, 1))
		return
	}
	k.exactly([]waybill.Envelope{m, after}, k.consume(r, 2))
}
