package redisstreams

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A chunk is what one script call stores. The server does nothing else meanwhile.
const (
	chunkMessages = 128
	chunkBytes    = 1 << 20
)

var (
	errBehind     = outage("publish", waybill.ErrBehind)
	errUnroutable = &waybill.Error{Op: "waybill/redisstreams: publish", Class: waybill.ClassRejected, Err: waybill.ErrUnroutable}
	errTopicFull  = &waybill.Error{Op: "waybill/redisstreams: publish", Class: waybill.ClassOutage, TopicOnly: true, Err: errFull}
)

// Publish implements core.Publisher. It stores a message in all queues that are bound for its topic, or in none, in one
// step. The batch goes in chunks, one after the other; an outage ends it.
func (t *Transport) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	const op = "publish"
	if err := t.open(op); err != nil {
		return core.AllFailed(len(batch), err)
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.PublishTimeout)
	defer cancel()
	results := make(core.Results, len(batch))
	failed := map[string]bool{} // keys
	for from := 0; from < len(batch); {
		to, size := from, 0
		for to < len(batch) && to-from < chunkMessages && (to == from || size+batch[to].Size() <= chunkBytes) {
			size += batch[to].Size()
			to++
		}
		if err := t.publishChunk(ctx, batch[from:to], results[from:to], failed, size); err != nil {
			copy(results[from:], core.AllFailed(len(batch)-from, err))
			return results
		}
		from = to
	}
	return results
}

// maxStale bounds how often a chunk is made anew since the bindings have changed meanwhile.
const maxStale = 10

func (t *Transport) publishChunk(ctx context.Context, batch []waybill.Envelope, results core.Results, failed map[string]bool, size int) error {
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
		c := chunk{t: t, routing: r, results: results, failed: failed, keys: []string{t.keys.version()}}
		c.fill(batch, size)
		if len(c.slots) == 0 && !c.unroutable {
			c.finish(batch, nil)
			return nil
		}
		answer, err := call(ctx, t, op, func(ctx context.Context) (any, error) { return t.store(ctx, c.keys, c.args) })
		if err != nil {
			return err
		}
		if codes, ok := answer.([]any); ok {
			c.finish(batch, codes)
			return nil
		}
		r = nil // it was old
	}
	return outage(op, fmt.Errorf("the bindings of bus %q change all the time", t.opts.Bus))
}

// chunk is one call of the script.
type chunk struct {
	t       *Transport
	routing *routing
	results core.Results
	failed  map[string]bool // keys, by chunks before

	keys       []string // of Redis
	args       []any
	slots      []int // of the messages sent, in the results
	behind     map[string]bool
	unroutable bool // some message is, by this routing
}

func (c *chunk) fill(batch []waybill.Envelope, size int) {
	now := time.Now()
	places := map[string]int{}    // queue → place in keys
	numbers := map[string]int64{} // key → number
	c.args = append(make([]any, 0, 2+len(batch)), c.routing.version, c.t.opts.MaxLen)
	c.behind = map[string]bool{}
	buf := make([]byte, 0, size+size/4+400*len(batch))
	for i := range batch {
		e := &batch[i]
		queues := c.routing.queues(e.Topic)
		c.results[i] = nil
		if e.Key != "" && (c.failed[e.Key] || c.behind[e.Key]) {
			c.results[i] = errBehind
		} else if err := checkSendable(e, c.t.opts.MaxMessageBytes, now); err != nil {
			c.results[i] = err
		} else if len(queues) == 0 {
			c.results[i], c.unroutable = errUnroutable, true
		}
		if c.results[i] != nil {
			c.behind[e.Key] = true
			continue
		}
		number := int64(0)
		if e.Key != "" {
			if number = numbers[e.Key]; number == 0 {
				number = int64(len(numbers) + 1)
				numbers[e.Key] = number
			}
		}
		start := len(buf)
		buf = packInt(packArray16(buf, 0), number) // the length comes when it is known
		buf = packInt(buf, int64(len(queues)))
		for _, q := range queues {
			place, ok := places[q]
			if !ok {
				c.keys = append(c.keys, c.t.keys.queue(q))
				place = len(c.keys) // Lua counts from 1
				places[q] = place
			}
			buf = packInt(buf, int64(place))
		}
		var n int
		buf, n = encode(buf, e)
		binary.BigEndian.PutUint16(buf[start+1:], uint16(2+len(queues)+n))
		c.args = append(c.args, buf[start:len(buf):len(buf)])
		c.slots = append(c.slots, i)
	}
}

// finish takes over the codes of the messages that were not stored, and which keys have failed.
func (c *chunk) finish(batch []waybill.Envelope, codes []any) {
	for i := 0; i+1 < len(codes); i += 2 {
		place, _ := codes[i].(int64)
		slot := c.slots[place]
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

// store runs the script, and waits as Options.Confirm says.
func (t *Transport) store(ctx context.Context, keys []string, args []any) (any, error) {
	if t.opts.Confirm == ConfirmStored || t.opts.Confirm == ConfirmAlways {
		return publishScript.Run(ctx, t.client, keys, args...).Result()
	}
	var node redis.Cmdable = t.client
	if cluster, ok := t.client.(*redis.ClusterClient); ok { // WAIT is for one connection
		master, err := cluster.MasterForKey(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		node = master
	}
	answer, err := t.storeAndWait(ctx, node, func(p redis.Pipeliner) *redis.Cmd { return publishScript.EvalSha(ctx, p, keys, args...) })
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return t.storeAndWait(ctx, node, func(p redis.Pipeliner) *redis.Cmd { return publishScript.Eval(ctx, p, keys, args...) })
	case redis.HasErrorPrefix(err, "MOVED"):
		if cluster, ok := t.client.(*redis.ClusterClient); ok {
			cluster.ReloadState(ctx)
		}
	}
	return answer, err
}

func (t *Transport) storeAndWait(ctx context.Context, node redis.Cmdable, run func(redis.Pipeliner) *redis.Cmd) (any, error) {
	limit := t.opts.Timeout / 2 // the driver waits for Timeout
	p := node.Pipeline()
	stored := run(p)
	question := []any{"WAIT", t.opts.Replicas, limit.Milliseconds()}
	if t.opts.Confirm == ConfirmSynced {
		question = []any{"WAITAOF", 1, t.opts.Replicas, limit.Milliseconds()}
	}
	waited := p.Do(ctx, question...)
	_, _ = p.Exec(ctx) // each command has its error
	answer, err := stored.Result()
	if err != nil {
		return nil, err
	}
	if _, ok := answer.([]any); !ok { // nothing was stored
		return answer, nil
	}
	local, have := int64(1), int64(0)
	if t.opts.Confirm == ConfirmSynced {
		n, err := waited.Int64Slice()
		if err != nil {
			return nil, err
		}
		if len(n) == 2 {
			local, have = n[0], n[1]
		}
	} else if have, err = waited.Int64(); err != nil {
		return nil, err
	}
	if local < 1 || have < int64(t.opts.Replicas) {
		return nil, outage("publish", fmt.Errorf("%w: the server has the messages, but after %s only %d of %d replicas, and its own file: %t; "+
			"look at INFO replication and INFO persistence", errNoAnswer, limit, have, t.opts.Replicas, local > 0))
	}
	return answer, nil
}
