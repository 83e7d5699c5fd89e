package redisstreams_test

// Effects of an operator's settings and commands on a bus: a server without memory, one that evicts, and a stream that
// is trimmed.

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// A server at its maxmemory takes nothing, and is drained all the same: in order, with retries that are due, with
// retries and rejections of now, and by a consumer that starts only then.
func TestFullServerIsDrained(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	opts := prepared(redisstreams.Options{HoldFor: time.Hour})
	bus := dial(t, server.URL(), opts)
	subs := []core.Subscription{
		{Queue: "ordered", Bindings: []string{"ordered"}, InOrder: true},
		{Queue: "due", Bindings: []string{"due"}},
		{Queue: "plain", Bindings: []string{"plain"}},
	}
	receivers := map[string]core.Receiver{}
	for _, sub := range subs {
		receivers[sub.Queue] = subscribe(t, bus, sub)
		publish(t, bus, envelopes(20, sub.Queue)...)
	}
	settle(t, receivers["due"], core.AckRetry(receive(t, receivers["due"], 1)[0], time.Millisecond, nil))
	if err := receivers["plain"].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Do(t.Context(), "CONFIG", "SET", "maxmemory", "1"); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, many} {
		if err := bus.Publish(t.Context(), envelopes(n, "plain"))[0]; waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), "maxmemory") {
			t.Fatalf("%d messages for a full server: %v", n, err)
		}
	}
	receivers["plain"] = subscribe(t, dial(t, server.URL(), opts), subs[2])
	receivers["new"] = subscribe(t, bus, core.Subscription{Queue: "new", Bindings: []string{"plain"}})
	retried := receive(t, receivers["plain"], 3)
	settle(t, receivers["plain"], core.AckRetry(retried[0], 0, nil), core.AckRetry(retried[1], time.Millisecond, nil), core.AckReject(retried[2], waybill.ReasonRejected, nil))
	for queue, left := range map[string]int{"ordered": 20, "due": 20, "plain": 19} {
		for _, d := range receive(t, receivers[queue], left) {
			settle(t, receivers[queue], core.AckDone(d))
		}
		if n := (queueKeys{t, raw(t, server.URL()), opts.Bus}).len("queue", queue); n != 0 {
			t.Errorf("queue %s: %d are left", queue, n)
		}
	}
	if n, err := bus.ParkedDepth(t.Context(), "plain"); n != 1 || err != nil {
		t.Errorf("%d parked, %v", n, err)
	}
}

// A server that may evict keys is refused with every kind of Confirm: it would evict the bindings, or a whole queue. A
// user who may not look can work, and the log says so; not with ConfirmAlways.
func TestEvictingServer(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, testenv.RedisOptions{Config: []string{"appendfsync always"}})
	set := func(words ...any) {
		t.Helper()
		if err := server.Do(t.Context(), words...); err != nil {
			t.Fatal(err)
		}
	}
	kinds := []redisstreams.Options{
		{}, {Confirm: redisstreams.ConfirmAlways}, {Confirm: redisstreams.ConfirmReplicas, Replicas: 1}, {Confirm: redisstreams.ConfirmSynced},
	}
	check := func(want bool, what string) {
		t.Helper()
		for _, opts := range kinds {
			opts.Lazy = true
			err := dial(t, server.URL(), opts).Check(t.Context())
			if refused := errors.Is(err, waybill.ErrMisconfigured) && strings.Contains(err.Error(), "maxmemory-policy"); refused != want || !refused && err != nil {
				t.Errorf("%s, %v: %v", what, opts.Confirm, err)
			}
		}
	}
	for _, policy := range []string{"allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl", "noeviction"} {
		set("CONFIG", "SET", "maxmemory", "100mb")
		set("CONFIG", "SET", "maxmemory-policy", policy)
		check(policy != "noeviction", policy)
		set("CONFIG", "SET", "maxmemory", "0")
		check(false, policy+" without maxmemory")
	}
	set("CONFIG", "SET", "maxmemory", "100mb")
	set("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	var log sharedtest.Log
	opts := prepared(redisstreams.Options{Logger: log.Logger(slog.LevelInfo)})
	set(append(acl(t, "shop", opts.Bus), "-info")...)
	url := strings.Replace(server.URL(), "redis://", "redis://shop:secret@", 1)
	dial(t, url, opts)
	if !strings.Contains(log.String(), "redisstreams.unverified") {
		t.Errorf("the log says nothing of what could not be verified: %s", log.String())
	}
	opts.Confirm = redisstreams.ConfirmAlways
	if _, err := redisstreams.Dial(t.Context(), url, opts); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("ConfirmAlways, and nothing could be verified: %v", err)
	}
}

// A retry, a rejection or a release of an entry that was trimmed meanwhile fails, since nothing is left of the message;
// an ack succeeds. The log tells of it, and of entries that are gone when their time comes.
func TestTrimmedEntries(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	var log sharedtest.Log
	opts := prepared(redisstreams.Options{HoldFor: time.Hour, Logger: log.Logger(slog.LevelInfo)})
	bus := dial(t, url, opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	keys := queueKeys{t, raw(t, url), opts.Bus}
	told := 0
	says := func(what string, n int) {
		t.Helper()
		told += n
		patience.Until(t, "the log tells of "+what, func() bool { return strings.Count(log.String(), "redisstreams.entry_gone") == told })
	}
	trim := func(kind string) {
		t.Helper()
		if err := keys.client.XTrimMaxLen(t.Context(), keys.key(kind, "q"), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, bus, envelopes(5, "a")...)
	ds := receive(t, r, 5)
	trim("queue")
	acks := []core.Ack{
		core.AckRetry(ds[0], 0, nil), core.AckRetry(ds[1], time.Hour, nil), core.AckReject(ds[2], waybill.ReasonRejected, nil), core.AckRelease(ds[3]),
	}
	for i, err := range r.Settle(t.Context(), append(acks, core.AckDone(ds[4]))) {
		if lost := errors.Is(err, waybill.ErrLeaseLost) && strings.Contains(err.Error(), "trimmed"); lost != (i < 4) || i == 4 && err != nil {
			t.Errorf("settle %d: %v", i, err)
		}
	}
	if n := keys.pending("q"); n != 0 {
		t.Errorf("%d are still held", n)
	}
	says("four settles", 1)

	publish(t, bus, envelopes(1, "a")...)
	settle(t, r, core.AckRetry(receive(t, r, 1)[0], time.Hour, nil))
	trim("delayed")
	due := keys.key("due", "q")
	// now
	if err := keys.client.ZInterStore(t.Context(), due, &redis.ZStore{Keys: []string{due}, Weights: []float64{0}}).Err(); err != nil {
		t.Fatal(err)
	}
	publish(t, bus, envelopes(1, "a")...) // a marker behind
	marker := receive(t, r, 1)[0]
	says("a retry that was due", 1)

	settle(t, r, core.AckRelease(marker))
	trim("queue")
	publish(t, bus, envelopes(1, "a")...)
	settle(t, r, core.AckDone(receive(t, r, 1)[0]))
	says("a released entry", 1)

	publish(t, bus, envelopes(1, "a")...)
	receive(t, r, 1)
	trim("queue")
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	says("what a receiver held that closed", 1)
}
