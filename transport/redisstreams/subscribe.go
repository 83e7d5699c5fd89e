package redisstreams

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

// Subscribe implements core.Subscriber. It makes the queue's stream, its group and its bindings, or with
// Options.Passive verifies that they are there.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	const op = "subscribe"
	if err := t.open(op); err != nil {
		return nil, err
	}
	if err := waybill.Invalid("waybill/redisstreams: subscription", subscriptionProblems(&sub)...); err != nil {
		return nil, err
	}
	r := newReceiver(ctx, t, sub)
	if _, err := r.declare(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	closed := t.closed
	if !closed {
		t.receivers[r] = struct{}{}
	}
	t.mu.Unlock()
	if closed {
		return nil, outage(op, waybill.ErrClosed)
	}
	r.endWith(ctx)
	return r, nil
}

func subscriptionProblems(sub *core.Subscription) []string {
	var p []string
	if sub.Queue == "" {
		p = append(p, "Queue: is empty; name the queue, such as \"billing.orders\"")
	} else if s := check.Name(sub.Queue); s != "" {
		p = append(p, "Queue: "+s)
	}
	for i, b := range sub.Bindings {
		s := check.Name(b)
		if b == "" {
			s = "is empty; name a topic, or # for all"
		}
		if s != "" {
			p = append(p, fmt.Sprintf("Bindings[%d]: %s", i, s))
		}
	}
	return p
}

func newReceiver(ctx context.Context, t *Transport, sub core.Subscription) *receiver {
	r := &receiver{
		t: t, sub: sub, name: uuid.NewString(), life: context.WithoutCancel(ctx),
		closing: make(chan struct{}), ended: make(chan struct{}), taking: make(chan struct{}, 1), held: map[string]*handle{},
		queue: t.keys.queue(sub.Queue), wakeUps: t.keys.wakeUps(sub.Queue), delayed: t.keys.delayed(sub.Queue), due: t.keys.due(sub.Queue),
		parked: t.keys.parked(sub.Queue), active: t.keys.activeOf(sub.Queue),
		// At the start it may well replace one that has died.
		nextReclaim: time.Now(),
	}
	r.idle = time.AfterFunc(time.Hour, r.releaseReady)
	r.idle.Stop()
	return r
}

// declare makes the queue and its bindings, or looks for them. made: there was no queue.
func (r *receiver) declare(ctx context.Context) (made bool, _ error) {
	const op = "subscribe"
	t, members := r.t, make([]any, 0, 1+len(r.sub.Bindings))
	if !t.opts.Passive {
		members = append(members, uuid.NewString()) // the version that comes with a new binding
	}
	for _, b := range r.sub.Bindings {
		members = append(members, bindingOf(r.sub.Queue, b))
	}
	if !t.opts.Passive {
		n, err := call(ctx, t, op, func(ctx context.Context) (int64, error) {
			return subscribeScript.Run(ctx, t.client, []string{r.queue, t.keys.bindings(), t.keys.version()}, members...).Int64()
		})
		return n > 0, err
	}
	missing, err := call(ctx, t, op, func(ctx context.Context) ([]string, error) { return r.missing(ctx, members) })
	if err == nil && len(missing) > 0 {
		err = misconfigured(op, "queue %q lacks %s: make them (docs/redis.md), or leave Options.Passive off", r.sub.Queue, strings.Join(missing, ", "))
	}
	return false, err
}

// missing names what a queue lacks of its stream and of members of the bindings. It only reads: a passive consumer
// needs no right to write the bindings of all.
func (r *receiver) missing(ctx context.Context, members []any) ([]string, error) {
	var out []string
	groups, err := r.t.client.XInfoGroups(ctx, r.queue).Result()
	if err != nil && !redis.HasErrorPrefix(err, "no such key") {
		return nil, err
	}
	if !slices.ContainsFunc(groups, func(g redis.XInfoGroup) bool { return g.Name == groupName }) {
		out = append(out, fmt.Sprintf("stream %q with group %q", r.queue, groupName))
	}
	if len(members) == 0 {
		return out, nil
	}
	found, err := r.t.client.SMIsMember(ctx, r.t.keys.bindings(), members...).Result()
	if err != nil {
		return nil, err
	}
	for i, there := range found {
		if !there {
			out = append(out, fmt.Sprintf("binding %q", r.sub.Bindings[i]))
		}
	}
	return out, nil
}
