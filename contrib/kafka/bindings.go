package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/core"
)

// bindings are the bindings of all queues of a bus. They are records of a compacted log: a key is a queue and a
// binding, with a zero byte between them. A queue also has a record with an empty binding, from when it was made.
type bindings struct {
	t *Transport

	learning chan struct{} // holds a token while somebody reads the log

	mu      sync.Mutex
	queues  map[string][]string
	next    int64           // the offset to read from
	checked uint64          // everything that was bound when tick gave this number is known
	ticks   uint64          // see tick
	known   map[string]bool // answers of fits, by queue and topic
}

func newBindings(t *Transport) *bindings {
	return &bindings{t: t, learning: make(chan struct{}, 1), queues: map[string][]string{}, known: map[string]bool{}}
}

// tick returns a number for the records of the last fetch.
func (b *bindings) tick() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ticks++
	return b.ticks
}

// fits reports whether a binding of queue fits topic. The answer no is sure for records of the fetch tick, or of an
// earlier one.
func (b *bindings) fits(queue, topic string, tick uint64) (ok, sure bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := queue + "\x00" + topic
	ok, known := b.known[id]
	if !known {
		ok = slices.ContainsFunc(b.queues[queue], func(binding string) bool { return core.MatchBinding(binding, topic) })
		if len(b.known) < 10_000 {
			b.known[id] = ok
		}
	}
	return ok, tick <= b.checked
}

// of returns the bindings of queue, and whether there is such a queue.
func (b *bindings) of(queue string) ([]string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list, ok := b.queues[queue]
	return list, ok
}

// learn reads the new records of the log.
func (b *bindings) learn(ctx context.Context, op string) error {
	ctx, cancel := b.t.bounded(ctx)
	defer cancel()
	select {
	case b.learning <- struct{}{}:
		defer func() { <-b.learning }()
	case <-ctx.Done():
		return b.t.link.because(op, context.Cause(ctx))
	}
	b.mu.Lock()
	tick, next := b.ticks, b.next
	b.mu.Unlock()
	name := b.t.opts.bindings()
	ends, err := b.t.admin.ListEndOffsets(ctx, name)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return b.t.link.because(op, err)
	}
	end, _ := ends.Lookup(name, 0)
	if end.Offset > next {
		if err := b.t.scan(ctx, op, name, next, end.Offset, b.apply); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next, b.checked = max(next, end.Offset), tick
	return nil
}

func (b *bindings) apply(rec *kgo.Record) (more bool) {
	queue, binding, _ := strings.Cut(string(rec.Key), "\x00")
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.queues[queue]
	at := slices.Index(list, binding)
	switch {
	case rec.Value == nil && binding == "":
		delete(b.queues, queue)
	case rec.Value == nil && at >= 0:
		b.queues[queue] = slices.Delete(slices.Clone(list), at, at+1)
	case rec.Value != nil && at < 0:
		b.queues[queue] = append(slices.Clip(list), binding)
	}
	clear(b.known)
	return true
}

// add adds bindings to those of queue.
func (b *bindings) add(ctx context.Context, op, queue string, list []string) error {
	have, _ := b.of(queue)
	var records []*kgo.Record
	for _, binding := range append([]string{""}, list...) {
		if !slices.Contains(have, binding) {
			records = append(records, &kgo.Record{Topic: b.t.opts.bindings(), Key: []byte(queue + "\x00" + binding), Value: []byte{1}})
		}
	}
	if len(records) == 0 {
		return nil
	}
	ctx, cancel := b.t.bounded(ctx)
	defer cancel()
	for _, res := range b.t.client.ProduceSync(ctx, records...) {
		if res.Err != nil {
			return b.t.link.because(op, fmt.Errorf("the bindings cannot be written: %w", res.Err))
		}
	}
	return b.learn(ctx, op)
}

// scan calls fn with the records of partition 0 of a log from an offset on, up to the offset end, or until fn returns
// false.
func (t *Transport) scan(ctx context.Context, op, topic string, from, end int64, fn func(*kgo.Record) (more bool)) error {
	c, err := t.newClient(t.link, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(from)}}), kgo.FetchMaxWait(fetchWait))
	if err != nil {
		return err
	}
	defer c.Close()
	for next := from; next < end; {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return t.link.because(op, err)
		}
		more := true
		for _, p := range fetches.Errors() {
			return t.link.because(op, p.Err)
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			for _, rec := range p.Records {
				if next = rec.Offset + 1; rec.Offset < end {
					more = more && fn(rec)
				}
			}
			if len(p.Records) == 0 && p.LogStartOffset >= end {
				next = end
			}
		})
		if !more {
			return nil
		}
	}
	return nil
}
