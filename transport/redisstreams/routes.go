package redisstreams

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill/internal/check"
)

// routes is a publisher's copy of the bindings. Every script call names the version of the copy, so that no message is
// sent by an old one. The zero value has not been loaded, which is an old copy, too.
type routes struct {
	mu       sync.Mutex
	version  string
	bindings map[string][][]string // queue → bindings, as words
	cache    map[string][]string   // topic → queues
}

// maxCached bounds the topics whose queues are remembered.
const maxCached = 10_000

// load reads the bindings. The version is read first: if they change in between, the copy is old from the start.
func (r *routes) load(ctx context.Context, client redis.UniversalClient, k keys) error {
	version, err := client.Get(ctx, k.version()).Result()
	if err != nil && err != redis.Nil { //nolint:errorlint // the driver returns it bare
		return err
	}
	members, err := client.SMembers(ctx, k.bindings()).Result()
	if err != nil {
		return err
	}
	bindings := map[string][][]string{}
	for _, m := range members {
		if queue, binding, ok := parseBinding(m); ok {
			bindings[queue] = append(bindings[queue], strings.Split(binding, "."))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version, r.bindings, r.cache = version, bindings, map[string][]string{}
	return nil
}

// of returns the version, and the queues that are bound for topic.
func (r *routes) of(topic string) (version string, queues []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	queues, ok := r.cache[topic]
	if ok || r.cache == nil {
		return r.version, queues
	}
	words := strings.Split(topic, ".")
	for queue, bindings := range r.bindings {
		if slices.ContainsFunc(bindings, func(b []string) bool { return check.Matches(b, words) }) {
			queues = append(queues, queue)
		}
	}
	slices.Sort(queues)
	if len(r.cache) >= maxCached {
		clear(r.cache)
	}
	r.cache[topic] = queues
	return r.version, queues
}

// bindingOf returns the member of the set of bindings: a JSON array of the queue and the binding.
func bindingOf(queue, binding string) string {
	b, _ := json.Marshal([2]string{queue, binding}) // text always can be written
	return string(b)
}

func parseBinding(member string) (queue, binding string, ok bool) {
	var pair []string
	if json.Unmarshal([]byte(member), &pair) != nil || len(pair) != 2 {
		return "", "", false
	}
	return pair[0], pair[1], true
}
