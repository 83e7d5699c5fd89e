package rabbitmq

import (
	"sync"
	"sync/atomic"
	"time"
)

// A message whose topic the user may not publish makes the broker close the channel, and those in flight on it are sent
// again one by one. So a publisher remembers such a topic for a moment, and refuses further messages of it by itself.

const (
	// deniedFor is how long a topic is remembered: after that the broker may have another answer.
	deniedFor = time.Second
	// maxDenied bounds the topics that are remembered. Beyond it all of them are forgotten.
	maxDenied = 1000
)

// denied are the topics that the broker has denied permission for a moment ago. Its methods are safe for concurrent
// use.
type denied struct {
	n  atomic.Int32 // topics; read without mu, since mostly there is none
	mu sync.Mutex
	of map[place]denial
}

// place is where a message goes.
type place struct{ exchange, key string }

// denial is the error of a topic, until a time.
type denial struct {
	err   error
	until time.Time
}

// add remembers the error of a topic.
func (d *denied) add(exchange, key string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil || len(d.of) >= maxDenied {
		d.of = map[place]denial{}
	}
	d.of[place{exchange, key}] = denial{err, time.Now().Add(deniedFor)}
	d.n.Store(int32(len(d.of)))
}

// error returns the error of a topic that is remembered, or nil.
func (d *denied) error(exchange, key string, now time.Time) error {
	if d.n.Load() == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	x, ok := d.of[place{exchange, key}]
	if ok && !now.Before(x.until) {
		delete(d.of, place{exchange, key})
		d.n.Store(int32(len(d.of)))
		return nil
	}
	return x.err
}
