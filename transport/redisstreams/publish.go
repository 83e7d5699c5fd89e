package redisstreams

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A chunk is what one transaction or script call stores. The server does nothing else meanwhile: some 2.4 µs
// for a message, or 4.7 in a script. chunkMessages is the batch of a relay.
const (
	chunkMessages  = 500
	scriptMessages = 128
	chunkBytes     = 1 << 20
)

var (
	errBehind     = outage("publish", waybill.ErrPredecessorFailed)
	errUnroutable = &waybill.Error{Op: "waybill/redisstreams: publish", Class: waybill.ClassRejected, Err: waybill.ErrUnroutable}
	errTopicFull  = &waybill.Error{Op: "waybill/redisstreams: publish", Class: waybill.ClassOutage, TopicOnly: true, Err: errFull}
)

// Publish implements core.Publisher. It stores a message in all queues that are bound for its topic, or in none, in one
// step. The batch goes in chunks, one after the other; an outage ends it. A message above a limit of the server fails
// for good, alone.
func (t *Transport) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	const op = "publish"
	if err := t.open(op); err != nil {
		return core.AllFailed(len(batch), err)
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.PublishTimeout)
	defer cancel()
	results := make(core.Results, len(batch))
	failed := map[string]bool{} // keys
	most := chunkMessages
	if t.opts.MaxLen > 0 {
		most = scriptMessages
	}
	for from := 0; from < len(batch); {
		to, size := from, 0
		for to < len(batch) && to-from < most {
			n := batch[to].Size()
			if n > aloneBytes {
				n = chunkBytes
			}
			if size += n; to > from && size > chunkBytes {
				break
			}
			to++
		}
		if err := t.publishChunk(ctx, batch[from:to], results[from:to], failed); err != nil {
			copy(results[from:], core.AllFailed(len(batch)-from, err))
			return results
		}
		from = to
	}
	return results
}

// maxStale bounds how often a chunk is made anew since the bindings have changed meanwhile.
const maxStale = 10

// publishChunk stores a part of a batch. The relay's memory of the bindings may be old. The server compares its version
// with the chunk's and refuses an old one, and the chunk is made anew.
func (t *Transport) publishChunk(ctx context.Context, batch []waybill.Envelope, results core.Results, failed map[string]bool) error {
	const op = "publish"
	r := t.routing.Load()
	for range maxStale {
		if r == nil {
			var err error
			if r, err = call(ctx, t, op, func(ctx context.Context) (*routing, error) { return loadRouting(ctx, t.client, t.keys) }); err != nil {
				return err
			}
			t.routing.Store(r)
		}
		c := chunk{routing: r, results: results, failed: failed}
		c.fill(batch, t.opts.MaxMessageBytes)
		if len(c.entries) == 0 && !c.unroutable {
			c.finish(batch, nil)
			return nil
		}
		refused, err := call(ctx, t, op, func(ctx context.Context) ([]any, error) { return t.store(ctx, &c) })
		if err != nil {
			cause := t.tooLarge(ctx, batch, &c, err)
			if cause == nil {
				return err
			}
			results[c.entries[0].slot], refused = cause, []any{}
		}
		if refused != nil {
			c.finish(batch, refused)
			return nil
		}
		r = nil // it was old
	}
	return outage(op, fmt.Errorf("the bindings of bus %q change all the time", t.opts.Bus))
}

// chunk is what is stored in one step. It holds nothing that is the caller's, but for results and failed.
type chunk struct {
	routing *routing
	results core.Results
	failed  map[string]bool // keys, by chunks before

	entries    []entryToAdd
	unroutable bool // some message is, by this routing
}

// entryToAdd is a message that is stored.
type entryToAdd struct {
	slot   int // in the results
	key    string
	queues []string
	fields []string // names and values in turn
}

// fill makes the entries of a chunk. A message behind a failed one of its key fails, too: the caller sends both again,
// in order.
func (c *chunk) fill(batch []waybill.Envelope, maxBytes int) {
	now := time.Now()
	c.entries = make([]entryToAdd, 0, len(batch))
	fields := make([]string, 0, 24*len(batch))
	behind := map[string]bool{}
	for i := range batch {
		e := &batch[i]
		queues := c.routing.queues(e.Topic)
		c.results[i] = nil
		if e.Key != "" && (c.failed[e.Key] || behind[e.Key]) {
			c.results[i] = errBehind
		} else if err := checkSendable(e, maxBytes, now); err != nil {
			c.results[i] = err
		} else if len(queues) == 0 {
			c.results[i], c.unroutable = errUnroutable, true
		}
		if c.results[i] != nil {
			behind[e.Key] = true
			continue
		}
		start := len(fields)
		fields = appendFields(fields, e)
		c.entries = append(c.entries, entryToAdd{i, e.Key, queues, fields[start:len(fields):len(fields)]})
	}
}

// finish takes over the codes of the messages that were not stored, and which keys have failed.
func (c *chunk) finish(batch []waybill.Envelope, codes []any) {
	for i := 0; i+1 < len(codes); i += 2 {
		place, _ := codes[i].(int64)
		slot := c.entries[place].slot
		c.results[slot] = errTopicFull
		if code, _ := codes[i+1].(int64); code == 2 {
			c.results[slot] = errBehind
		}
	}
	for i, err := range c.results {
		if err != nil && batch[i].Key != "" {
			c.failed[batch[i].Key] = true
		}
	}
}
