package redisstreams

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// A chunk is stored in one step by one of two ways. Both compare the version of the bindings with the chunk's, so that
// no message goes by old bindings.
//
//   way         | for                                          | round trips
//   ------------|----------------------------------------------|-------------------------------------
//   transaction | minTransaction messages or more, no MaxLen   | two: WATCH and MULTI, then XADDs and EXEC
//   script      | fewer, or with MaxLen, or after a moved slot | one

// minTransaction is how many messages are worth the two round trips of a transaction. The script needs one, and twice
// the server's time for each message.
const minTransaction = 32

// store stores a chunk, and waits as Options.Confirm says. It returns places and codes of the messages that were not
// stored, as the script does, or nil if the bindings have changed, and nothing was stored.
func (t *Transport) store(ctx context.Context, c *chunk) (refused []any, err error) {
	cluster, _ := t.client.(*redis.ClusterClient)
	one, err := t.primary(ctx)
	if err != nil {
		return nil, err
	}
	if node, ok := one.(connected); ok && t.opts.MaxLen == 0 && len(c.entries) >= minTransaction {
		refused, err = t.transact(ctx, node, c)
		if cluster == nil || !isElsewhere(err) {
			return refused, err
		}
		cluster.ReloadState(ctx) // nothing was stored; the script follows the slot
	}
	run := publishScript.Eval // were the script unknown, the WAIT behind it would wait in vain
	if t.opts.Confirm == ConfirmStored || t.opts.Confirm == ConfirmAlways {
		one, run = t.client, publishScript.EvalSha // otherwise WAIT is for one connection
	}
	keys, args := c.scriptCall(t.keys, t.opts.MaxLen)
	refused, err = t.runScript(ctx, one, run, keys, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		refused, err = t.runScript(ctx, one, publishScript.Eval, keys, args)
	}
	if cluster != nil && isElsewhere(err) {
		cluster.ReloadState(ctx)
	}
	return refused, err
}

// primary returns the client of the server that has the bus.
func (t *Transport) primary(ctx context.Context) (redis.Cmdable, error) {
	if cluster, ok := t.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, t.keys.version())
	}
	return t.client, nil
}

// isElsewhere reports whether the slot of the bus has moved to another node, or is about to.
func isElsewhere(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")
}

// connected is a client that can keep to one connection.
type connected interface{ Conn() *redis.Conn }

// scriptCall returns the arguments of the script.
func (c *chunk) scriptCall(k keys, maxLen int) (names []string, args []any) {
	names = []string{k.version()}
	args = append(make([]any, 0, 2+len(c.entries)), c.routing.version, maxLen)
	places := map[string]int{}    // queue → place in names
	numbers := map[string]int64{} // key → number
	for _, e := range c.entries {
		number := int64(0)
		if e.key != "" {
			if number = numbers[e.key]; number == 0 {
				number = int64(len(numbers) + 1)
				numbers[e.key] = number
			}
		}
		b := packInt(packInt(packArray(nil, 2+len(e.queues)+len(e.fields)), number), int64(len(e.queues)))
		for _, q := range e.queues {
			if places[q] == 0 {
				names = append(names, k.queue(q))
				places[q] = len(names) // Lua counts from 1
			}
			b = packInt(b, int64(places[q]))
		}
		args = append(args, packStrings(b, e.fields))
	}
	return names, args
}

type eval = func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

func (t *Transport) runScript(ctx context.Context, node redis.Cmdable, run eval, keys []string, args []any) ([]any, error) {
	p := node.Pipeline()
	stored := run(ctx, p, keys, args...)
	waited := t.wait(ctx, p)
	if last, _ := args[len(args)-1].([]byte); len(last) > aloneBytes {
		t.follow(ctx, p)
	}
	_, _ = p.Exec(ctx) // each command has its error
	answer, err := stored.Result()
	if err != nil {
		return nil, err
	}
	refused, ok := answer.([]any)
	if !ok {
		return nil, nil //nolint:nilnil // nothing was stored
	}
	return refused, t.waited(waited)
}

// transact stores a chunk by a transaction that fails if the version of the bindings changes: WATCH comes first, and
// the version that is read after it must be the chunk's. MULTI is answered before anything is sent that relies on it.
func (t *Transport) transact(ctx context.Context, node connected, c *chunk) (_ []any, err error) {
	conn := node.Conn()
	defer func() { err = errors.Join(err, conn.Close()) }()
	p := conn.Pipeline()
	p.Do(ctx, "WATCH", t.keys.version())
	version := p.Get(ctx, t.keys.version())
	p.Do(ctx, "MULTI")
	begun, _ := p.Exec(ctx)
	if err := firstError(begun); err != nil || version.Val() != c.routing.version {
		t.discard(ctx, conn)
		return nil, err
	}
	n := c.addAll(ctx, p, t.keys)
	exec := redis.NewSliceCmd(ctx, "EXEC")
	_ = p.Process(ctx, exec) // queues it
	waited := t.wait(ctx, p)
	sent, _ := p.Exec(ctx)
	if errors.Is(exec.Err(), redis.Nil) { // the version has changed
		return nil, nil
	}
	if err := firstError(sent[:n+1]); err != nil {
		t.discard(ctx, conn)
		return nil, err
	}
	for _, id := range exec.Val() {
		if err, ok := id.(error); ok {
			return nil, err
		}
	}
	if len(exec.Val()) != n {
		return nil, fmt.Errorf("the server has answered %d of %d commands of a transaction", len(exec.Val()), n)
	}
	return []any{}, t.waited(waited)
}

// addAll queues one XADD for each message and queue, and returns how many.
func (c *chunk) addAll(ctx context.Context, p redis.Pipeliner, k keys) (n int) {
	size := 0
	for _, e := range c.entries {
		size += len(e.queues) * (3 + len(e.fields))
	}
	names := map[string]any{}
	args, add, anyID := make([]any, 0, size), any("XADD"), any("*")
	for _, e := range c.entries {
		for _, q := range e.queues {
			if names[q] == nil {
				names[q] = k.queue(q)
			}
			start := len(args)
			args = append(args, add, names[q], anyID)
			for i := range e.fields {
				args = append(args, &e.fields[i]) // a string would be copied
			}
			_ = p.Process(ctx, redis.NewStatusCmd(ctx, args[start:len(args):len(args)]...)) // queues it
			n++
		}
	}
	return n
}

// discard ends a transaction that was not executed. The connection goes back to the pool, or is broken.
func (t *Transport) discard(ctx context.Context, conn *redis.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.Timeout)
	defer cancel()
	_ = conn.Do(ctx, "DISCARD").Err()
}

func firstError(cmds []redis.Cmder) error {
	for _, c := range cmds {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// wait adds the question that Options.Confirm asks for; nil if it asks for none.
func (t *Transport) wait(ctx context.Context, p redis.Pipeliner) *redis.Cmd {
	limit := (t.opts.Timeout / 2).Milliseconds() // the driver waits for Timeout
	switch t.opts.Confirm {
	case ConfirmReplicas:
		return p.Do(ctx, "WAIT", t.opts.Replicas, limit)
	case ConfirmSynced:
		return p.Do(ctx, "WAITAOF", 1, t.opts.Replicas, limit)
	case ConfirmStored, ConfirmAlways:
	}
	return nil
}

// waited returns an error unless the answer to wait is what Options.Confirm asks for.
func (t *Transport) waited(answer *redis.Cmd) error {
	if answer == nil {
		return nil
	}
	local, have := int64(1), int64(0)
	if t.opts.Confirm == ConfirmSynced {
		n, err := answer.Int64Slice()
		if err != nil {
			return err
		}
		if len(n) == 2 {
			local, have = n[0], n[1]
		}
	} else {
		var err error
		if have, err = answer.Int64(); err != nil {
			return err
		}
	}
	if local < 1 || have < int64(t.opts.Replicas) {
		return outage("publish", fmt.Errorf("%w: the server has the messages, but after %s only %d of %d replicas, and its own file: %t; "+
			"look at INFO replication and INFO persistence", errNoAnswer, t.opts.Timeout/2, have, t.opts.Replicas, local > 0))
	}
	return nil
}
