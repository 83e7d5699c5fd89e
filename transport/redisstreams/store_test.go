package redisstreams_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// many is a batch that goes by a transaction; a smaller one goes by the script.
const many = 40

// beforeExec calls a function once, before the client sends an EXEC.
type beforeExec struct{ do atomic.Pointer[func()] }

func (*beforeExec) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*beforeExec) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *beforeExec) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == "exec" }) {
			if do := h.do.Swap(nil); do != nil {
				(*do)()
			}
		}
		return next(ctx, cmds)
	}
}

// TR-04: bindings that change after a publisher has compared its copy, and before the server stores, count: a message
// is in all queues that are bound when it is stored, once, or in none and not confirmed.
func TestBindingsChangeMeanwhile(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries, o.PoolSize = -1, 1 // what is left on a connection would show
	client, hook := redis.NewClient(o), &beforeExec{}
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(hook)
	opts := prepared(redisstreams.Options{})
	pub, err := redisstreams.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	other := dial(t, url, opts)
	subscribe(t, other, core.Subscription{Queue: "old", Bindings: []string{"a"}})
	publish(t, pub, envelopes(many, "a")...)

	added := func() { subscribe(t, other, core.Subscription{Queue: "new", Bindings: []string{"a"}}) }
	hook.do.Store(&added)
	publish(t, pub, envelopes(many, "a")...)
	keys := queueKeys{t, raw(t, url), opts.Bus}
	if before, after := keys.len("queue", "old"), keys.len("queue", "new"); before != 2*many || after != many {
		t.Errorf("the old queue has %d messages, the new one %d", before, after)
	}

	removed := func() {
		pipe := keys.client.TxPipeline()
		pipe.Del(t.Context(), "{"+opts.Bus+"}:bindings")
		pipe.Set(t.Context(), "{"+opts.Bus+"}:version", "another", 0)
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Error(err)
		}
	}
	hook.do.Store(&removed)
	for i, err := range pub.Publish(t.Context(), envelopes(many, "a")) {
		if !errors.Is(err, waybill.ErrUnroutable) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if n := keys.len("queue", "old"); n != 2*many {
		t.Errorf("a queue that is not bound has %d messages", n)
	}

	for _, queue := range []string{"newer", "newest"} { // the publisher's copy is old when it begins
		subscribe(t, other, core.Subscription{Queue: queue, Bindings: []string{"a"}})
		publish(t, pub, envelopes(many, "a")...)
		if n := keys.len("queue", queue); n != many {
			t.Errorf("queue %s has %d messages", queue, n)
		}
	}
	if err := client.Set(t.Context(), "{"+opts.Bus+"}:after", 1, 0).Err(); err != nil {
		t.Error(err)
	}
}

// TR-10: a message has the same fields in all queues, from both ways to store it.
func TestBothWaysStoreTheSame(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{})
	bus := dial(t, url, opts)
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}})
	subscribe(t, bus, core.Subscription{Queue: "p", Bindings: []string{"a.#"}})
	batch := slices.Repeat([]waybill.Envelope{sharedtest.Envelope()}, many)
	var want []map[string]any
	for i := range batch {
		batch[i].Topic, batch[i].Expires = "a.b", batch[i].Expires.AddDate(100, 0, 0)
		batch[i].Headers = map[string]string{
			"short": "", "long": strings.Repeat("x", 31+i), "longer": strings.Repeat("y", 1<<16-many/2+i), strings.Repeat("z", 1000+i): "\x00\xff",
		}
		m := map[string]any{}
		for f := redisstreams.Fields(&batch[i]); len(f) > 0; f = f[2:] {
			m[f[0].(string)] = f[1]
		}
		want = append(want, m)
	}
	publish(t, bus, batch...)
	for _, e := range batch {
		publish(t, bus, e)
	}
	for _, queue := range []string{"q", "p"} {
		list, err := raw(t, url).XRange(t.Context(), "{"+opts.Bus+"}:queue:"+queue, "-", "+").Result()
		if err != nil || len(list) != 2*many {
			t.Fatal(len(list), err)
		}
		for i, entry := range list {
			if !maps.Equal(entry.Values, want[i%many]) {
				t.Fatalf("%s, entry %d: %s", queue, i, cmp.Diff(want[i%many], entry.Values))
			}
		}
	}
}

// TR-08: a user without MULTI stores nothing, and hears what is missing.
func TestNoTransactions(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	opts := prepared(redisstreams.Options{})
	subscribe(t, dial(t, server.URL(), opts), core.Subscription{Queue: "q", Bindings: []string{"a"}})
	for _, word := range []string{"+watch", "+multi"} {
		user := slices.DeleteFunc(acl(t, "shop", opts.Bus), func(w any) bool { return w == word })
		if err := server.Do(t.Context(), append(user, "-"+word[1:])...); err != nil {
			t.Fatal(err)
		}
		bus := dial(t, strings.Replace(server.URL(), "redis://", "redis://shop:secret@", 1), opts)
		for range 2 {
			err := bus.Publish(t.Context(), envelopes(many, "a")).FirstErr()
			if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "docs/redis.md") {
				t.Errorf("without %s: %v", word, err)
			}
		}
		publish(t, bus, envelope("1", "a")) // by the script, on the same connection
	}
	if n := (queueKeys{t, raw(t, server.URL()), opts.Bus}).len("queue", "q"); n != 2 {
		t.Errorf("%d messages were stored", n)
	}
}

// TR-08: if the key of a queue holds something else nothing of the chunk counts as published.
func TestQueueIsSomethingElse(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{})
	bus := dial(t, url, opts)
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	subscribe(t, bus, core.Subscription{Queue: "broken", Bindings: []string{"b"}})
	if err := raw(t, url).Set(t.Context(), "{"+opts.Bus+"}:queue:broken", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	batch := envelopes(many, "a")
	batch[many/2].Topic = "b"
	for i, err := range bus.Publish(t.Context(), batch) {
		if !errors.Is(err, waybill.ErrMisconfigured) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}
