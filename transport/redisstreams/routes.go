package redisstreams

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill/internal/check"
)

// routing is a publisher's copy of the bindings. Every script call names its version, so that no message is sent by an
// old copy.
type routing struct {
	version  string
	bindings map[string][][]string // queue → bindings, as words

	mu    sync.Mutex
	cache map[string][]string // topic → queues
}

// maxCached bounds the topics whose queues are remembered.
const maxCached = 10_000

// loadRouting reads the bindings. The version is read first: if they change in between, the copy is old from the start.
func loadRouting(ctx context.Context, client redis.UniversalClient, k keys) (*routing, error) {
	version, err := client.Get(ctx, k.version()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	members, err := client.SMembers(ctx, k.bindings()).Result()
	if err != nil {
		return nil, err
	}
	r := &routing{version: version, bindings: map[string][][]string{}, cache: map[string][]string{}}
	for _, m := range members {
		if queue, binding, ok := parseBinding(m); ok {
			r.bindings[queue] = append(r.bindings[queue], strings.Split(binding, "."))
		}
	}
	return r, nil
}

// queues returns the queues that are bound for topic.
func (r *routing) queues(topic string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	queues, ok := r.cache[topic]
	if ok {
		return queues
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
	return queues
}

// bindingOf returns the member of the set of bindings: a JSON array of the queue and the binding.
func bindingOf(queue, binding string) string {
	b, _ := json.Marshal([2]string{queue, binding}) // text can always be written
	return string(b)
}

func parseBinding(member string) (queue, binding string, ok bool) {
	var pair []string
	if json.Unmarshal([]byte(member), &pair) != nil || len(pair) != 2 {
		return "", "", false
	}
	return pair[0], pair[1], true
}
