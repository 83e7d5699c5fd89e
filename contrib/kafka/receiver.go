package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A receiver is a member of its queue's consumer group. A message goes this way:
//
//	poll     fetches records and puts each into its partition's position, at most so many bytes
//	pick     hands out those that are due and fit a binding; it marks the others as done
//	commit   stores the deliveries beside the offset, so that those of a killed process count
//	hand     returns the deliveries to the consumer
//	Settle   stores the copy of a retry or of a rejection, marks the message as done, and commits again
//
// Two goroutines work for a receiver: poll fetches, and commits makes one commit at a time for all callers. A rebalance
// comes between two polls only, since the client waits for AllowRebalance. It takes partitions away in revoked, which
// waits for the deliveries, or in forget, when the group has given the partitions to another member already.

const (
	fetchWait    = 500 * time.Millisecond // how long a broker waits for a message
	heartbeat    = time.Second
	maxBuffered  = 2_000    // fetched messages of a partition; of a retry log ten times as many
	bufferBytes  = 16 << 20 // of them
	heldBytes    = 64 << 20 // of all partitions of the bus
	pollMost     = 5_000
	retryBuffers = 10
)

// SubscriberTraits declares the subscriber's promises.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	return core.SubscriberTraits{
		KeyOrder: true, DelaysRetries: true, MaxRetryDelay: t.settings().retention / 2, Parks: true, CountsRedeliveries: true, SingleActive: true,
		SharesByPartition: true, Wildcards: core.WildcardsAll,
	}
}

// at is a partition of a topic.
type at struct {
	topic  string
	number int32
}

// receiver is an open subscription: a member of the group of its queue.
type receiver struct {
	t                    *Transport
	sub                  core.Subscription
	group, retry, parked string
	client               *kgo.Client
	link                 *link
	topics               map[[16]byte]string // of the bus and the retry log
	wake                 chan struct{}       // holds a token when something has changed
	committing           chan struct{}       // holds a token when somebody waits for a commit
	life                 context.Context     //nolint:containedctx // of the receiver; it ends with Close
	end                  context.CancelFunc
	work                 sync.WaitGroup
	closeOnce            sync.Once
	closeErr             error

	mu        sync.Mutex
	closed    bool
	positions map[at]*position
	ready     []*handle        // handed out, and not returned by Receive yet: their commit may be on its way
	held      map[*handle]bool // returned by Receive and not settled; true = a call settles it
	waiters   []*commit
	inflight  bool          // a commit is on its way
	failed    error         // to be told by Receive
	drained   chan struct{} // closed when a held delivery was settled, if somebody waits for that
}

// handle is a delivery that the receiver has handed out.
type handle struct {
	r        *receiver
	p        *position
	e        *entry
	delivery *waybill.Delivery
	attempt  int
	copied   *flight // of the copy that a failed settle has made
	verdict  core.Verdict
	lost     func() // see OnLost
	settled  bool
}

// Native returns a copy of the record as the driver fetched it; see [waybill.Native].
func (h *handle) Native() *kgo.Record {
	rec := *h.e.record
	return &rec
}

// Subscribe implements core.Subscriber.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	op := "subscribe to queue " + sub.Queue
	if err := problems(&sub); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, classify(op, context.Cause(ctx))
	}
	if t.life.Err() != nil {
		return nil, closed(op)
	}
	r := &receiver{
		t: t, sub: sub, group: t.opts.group(sub.Queue), retry: t.opts.retry(sub.Queue), parked: t.opts.parked(sub.Queue), link: &link{},
		topics: map[[16]byte]string{}, wake: make(chan struct{}, 1), committing: make(chan struct{}, 1), positions: map[at]*position{},
		held: map[*handle]bool{},
	}
	if err := r.open(ctx, op); err != nil {
		return nil, err
	}
	t.mu.Lock()
	if t.receivers == nil {
		t.mu.Unlock()
		return nil, closed(op)
	}
	t.receivers[r] = struct{}{}
	t.mu.Unlock()
	var err error
	// The values of ctx stay. Its end closes the receiver, whose last commit needs a context that has not ended.
	r.life, r.end = context.WithCancel(context.WithoutCancel(ctx))
	r.client, err = t.newClient(r.link,
		kgo.ConsumerGroup(r.group), kgo.ConsumeTopics(t.opts.Bus, r.retry), kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), kgo.SessionTimeout(t.opts.SessionTimeout), kgo.HeartbeatInterval(min(heartbeat, t.opts.SessionTimeout/3)),
		kgo.RebalanceTimeout(t.opts.DrainFor+t.opts.Timeout+10*time.Second), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(fetchWait),
		kgo.FetchMaxBytes(bufferBytes), kgo.OnOffsetsFetched(r.assigned),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { r.revoked(m) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, m map[string][]int32) { r.forget(m) }))
	if err != nil {
		return nil, err
	}
	r.work.Go(r.poll)
	r.work.Go(r.commits)
	stop := context.AfterFunc(ctx, func() { _ = r.Close(context.WithoutCancel(ctx)) })
	context.AfterFunc(r.life, func() { stop() })
	return r, nil
}

// open makes what the queue lacks, and learns the ids of its topics.
func (r *receiver) open(ctx context.Context, op string) error {
	t := r.t
	if err := t.open(ctx); err != nil {
		return err
	}
	if err := t.prepare(ctx, op, &r.sub, !t.opts.Passive); err != nil {
		return err
	}
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	list, err := t.admin.ListTopics(ctx, t.opts.Bus, r.retry)
	if err != nil {
		return t.link.because(op, err)
	}
	for name, d := range list {
		r.topics[d.ID] = name
	}
	return nil
}

// assigned takes the partitions that the group has given to this member, with their committed state. The client calls
// it.
func (r *receiver) assigned(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range resp.Groups {
		for _, topic := range g.Topics {
			name := cmp.Or(topic.Topic, r.topics[topic.TopicID])
			for _, x := range topic.Partitions {
				if x.ErrorCode != 0 {
					continue // the client reports it
				}
				p := &position{topic: name, number: x.Partition, retries: name == r.retry, next: -1}
				if x.Offset >= 0 {
					var metadata string
					if x.Metadata != nil {
						metadata = *x.Metadata
					}
					if err := p.restore(x.Offset, metadata); err != nil {
						r.failed = misconfigured("receive", "partition %d of %q: %w: use the newer program, or set the positions of the group %q anew",
							x.Partition, name, err, r.group)
						return err
					}
				}
				r.positions[at{name, x.Partition}] = p
			}
		}
	}
	r.signal()
	return nil
}

// revoked releases partitions. It waits until what was handed out is settled.
func (r *receiver) revoked(m map[string][]int32) {
	limit := time.NewTimer(r.t.opts.DrainFor)
	defer limit.Stop()
	for {
		r.mu.Lock()
		left := false
		for p := range r.each(m) {
			p.leaving = true
			r.unready(p)
			left = left || p.outs > 0
		}
		drained := make(chan struct{})
		r.drained = drained
		closed := r.closed
		r.mu.Unlock()
		if !left || closed {
			break
		}
		select {
		case <-drained:
			continue
		case <-limit.C:
		case <-r.life.Done():
		}
		break
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.life), r.t.opts.Timeout)
	defer cancel()
	_ = r.commit(ctx, nil) // if it fails, some messages come again to their new owner
	r.forget(m)
}

// each returns the positions of a map of partitions. The caller holds mu.
func (r *receiver) each(m map[string][]int32) func(func(*position) bool) {
	return func(yield func(*position) bool) {
		for topic, list := range m {
			for _, n := range list {
				if p := r.positions[at{topic, n}]; p != nil && !yield(p) {
					return
				}
			}
		}
	}
}

// forget drops partitions that are another's now.
func (r *receiver) forget(m map[string][]int32) {
	var tell []func()
	r.mu.Lock()
	for p := range r.each(m) {
		p.gone = true
		r.unready(p)
		delete(r.positions, at{p.topic, p.number})
		for h, settling := range r.held {
			if h.p == p && !settling {
				delete(r.held, h)
				if h.lost != nil {
					tell = append(tell, h.lost)
				}
			}
		}
	}
	r.mu.Unlock()
	r.signal()
	for _, fn := range tell {
		fn()
	}
}

// unready takes back what Receive has not returned. The caller holds mu.
func (r *receiver) unready(p *position) {
	r.ready = slices.DeleteFunc(r.ready, func(h *handle) bool {
		if h.p == p {
			p.putBack(h.e)
		}
		return h.p == p
	})
}

func (r *receiver) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// poll fetches until the receiver is closed. A rebalance waits while a poll's records are put into their places, so
// that none of an earlier ownership gets there.
func (r *receiver) poll() {
	for r.life.Err() == nil {
		fetches := r.client.PollRecords(r.life, pollMost)
		if r.life.Err() == nil {
			r.take(fetches)
		}
		r.client.AllowRebalance()
	}
}

// take puts fetched records into their positions. A record below a position's next was there already: the client
// fetches from the committed offset anew after each assignment.
func (r *receiver) take(fetches kgo.Fetches) {
	tick := r.t.bindings.tick()
	pause := map[string][]int32{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range fetches.Errors() {
		if !errors.Is(e.Err, context.Canceled) && !errors.Is(e.Err, kgo.ErrClientClosed) {
			r.failed = classify("receive", e.Err)
			if topicUnknown(e.Err) { // the caller subscribes anew
				r.failed = misconfigured("receive", "the topic %q was deleted, or made anew: declare the topology again (%w)", e.Topic, e.Err)
			}
		}
	}
	fetches.EachPartition(func(x kgo.FetchTopicPartition) {
		p := r.positions[at{x.Topic, x.Partition}]
		if p == nil {
			return
		}
		// A message that retention deleted unread is an error, not a silent gap.
		if from := p.next; from >= 0 && x.LogStartOffset > from && len(x.Records) > 0 {
			r.failed = outage("receive", fmt.Errorf("partition %d of the log %q: the messages %d to %d were deleted before the queue %q has read them: "+
				"raise the retention, or add receivers", p.number, p.topic, from, x.LogStartOffset-1, r.sub.Queue))
		}
		for _, rec := range x.Records {
			if rec.Offset >= p.next {
				p.fetched(rec, tick)
			}
		}
		if r.full(p) && !p.paused {
			p.paused = true
			pause[p.topic] = append(pause[p.topic], p.number)
		}
	})
	if len(pause) > 0 {
		r.client.PauseFetchPartitions(pause)
	}
	r.signal()
}

// full reports whether no more should be fetched from a partition. The partitions of the bus share heldBytes. A retry
// log does not: a message that is due waits there behind others. The caller holds mu.
func (r *receiver) full(p *position) bool {
	most, bytes := maxBuffered, min(bufferBytes, heldBytes/len(r.positions))
	if p.retries {
		most, bytes = most*retryBuffers, bufferBytes
	}
	return len(p.entries) >= most || p.bytes >= bytes
}

// Receive implements core.Receiver.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	const op = "receive"
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		wait, unsure, err := r.pick(limit)
		if err == nil && unsure {
			err = r.t.bindings.learn(ctx, op)
			if err == nil {
				continue
			}
		}
		// The count of a delivery is stored before it is returned, so it survives a kill.
		if err == nil && wait == 0 {
			if err = r.commit(ctx, nil); err == nil {
				if ds := r.hand(limit); len(ds) > 0 {
					return ds, nil
				}
				continue
			}
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-r.wake:
		case <-ctx.Done():
		case <-timer.C:
			err = r.link.broken(op)
		}
		timer.Stop()
		if err != nil {
			return nil, err
		}
	}
}

// pick hands out up to limit messages, or returns for how long to wait for some. unsure: a message fits no binding that
// is known, and there can be new ones.
func (r *receiver) pick(limit int) (wait time.Duration, unsure bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, false, closed("receive")
	}
	if r.failed != nil {
		err, r.failed = r.failed, nil
		return 0, false, err
	}
	if len(r.ready) > 0 {
		return 0, false, nil
	}
	wait = time.Second
	now := time.Now()
	resume := map[string][]int32{}
	bytes, most := 0, r.sub.ReceiveBytes
	for _, p := range r.positions { // in any order, so that none starves
		if len(r.ready) >= limit || most > 0 && bytes >= most {
			break
		}
		if p.leaving {
			continue
		}
		var skip []*entry
		for _, e := range p.waiting(now, limit-len(r.ready)) {
			if !p.retries {
				ok, sure := r.t.bindings.fits(r.sub.Queue, get(e.record, prefixCE+core.AttrTopic), e.tick)
				if !ok && sure {
					skip = append(skip, e)
					continue
				}
				if unsure = !ok; unsure {
					break
				}
			}
			count := e.count
			if most > 0 && bytes >= most || !p.handOut(e) {
				break
			}
			bytes += len(e.record.Value)
			r.ready = append(r.ready, r.handleOf(p, e, count))
		}
		for _, e := range skip {
			p.done(e)
		}
		if len(skip) > 0 {
			wait = time.Millisecond // there can be more
		}
		if next := p.nextDue(); !next.IsZero() {
			wait = min(wait, max(next.Sub(now), time.Millisecond))
		}
		if p.paused && !r.full(p) {
			p.paused = false
			resume[p.topic] = append(resume[p.topic], p.number)
		}
	}
	if len(resume) > 0 {
		r.client.ResumeFetchPartitions(resume)
	}
	if len(r.ready) > 0 {
		return 0, false, nil
	}
	return wait, unsure, nil
}

// waiting returns up to n messages that can be handed out now, the oldest first; of a retry log those that are due
// first.
func (p *position) waiting(now time.Time, n int) []*entry {
	var list []*entry
	for _, e := range p.entries {
		if e.out || e.record == nil || e.due.After(now) {
			continue
		}
		list = append(list, e)
		if len(list) == n && !p.retries {
			break
		}
	}
	if p.retries {
		slices.SortStableFunc(list, func(a, b *entry) int { return cmp.Compare(a.due.UnixMilli(), b.due.UnixMilli()) })
		list = list[:min(n, len(list))]
	}
	return list
}

// nextDue returns when the next retry is due that waits; zero = none.
func (p *position) nextDue() (next time.Time) {
	if !p.retries {
		return next
	}
	for _, e := range p.entries {
		if !e.out && e.record != nil && (next.IsZero() || e.due.Before(next)) {
			next = e.due
		}
	}
	return next
}

// handleOf makes the delivery of an entry. Copies of the retry log carry the attempts and the redeliveries of the
// message before them.
func (r *receiver) handleOf(p *position, e *entry, count int) *handle {
	h := &handle{r: r, p: p, e: e, attempt: int(max(number(e.record, headerAttempt), 1))}
	h.delivery = &waybill.Delivery{
		Envelope: decode(e.record), Queue: r.sub.Queue, Attempt: h.attempt, Redeliveries: count + int(number(e.record, headerRedeliveries)), Handle: h,
	}
	return h
}

// hand returns deliveries whose counts are stored.
func (r *receiver) hand(limit int) []*waybill.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(limit, len(r.ready))
	ds := make([]*waybill.Delivery, n)
	for i, h := range r.ready[:n] {
		r.held[h] = false
		ds[i] = h.delivery
	}
	r.ready = slices.Delete(r.ready, 0, n)
	return ds
}

// OnLost implements core.LeaseWatcher.
func (r *receiver) OnLost(d *waybill.Delivery, fn func()) {
	h, ok := d.Handle.(*handle)
	if !ok || h.r != r {
		return
	}
	r.mu.Lock()
	_, held := r.held[h]
	h.lost = fn
	gone := !held && !h.settled
	r.mu.Unlock()
	if gone {
		fn()
	}
}

// Check reports whether the connection is lost. It sends no request.
func (r *receiver) Check(context.Context) error { return r.link.broken("receive") }

// Close implements core.Receiver. What Receive has returned goes back, and counts as delivered.
func (r *receiver) Close(ctx context.Context) error {
	r.closeOnce.Do(func() {
		ctx, cancel := r.t.bounded(ctx)
		defer cancel()
		r.mu.Lock()
		r.closed = true
		for _, p := range r.positions {
			p.leaving = true
			r.unready(p)
		}
		r.mu.Unlock()
		if err := r.commit(ctx, nil); err != nil {
			r.closeErr = err
		}
		r.end()
		_ = r.client.LeaveGroupContext(ctx) // else the group notices at the end of the session
		r.client.CloseAllowingRebalance()
		r.work.Wait()
		r.t.mu.Lock()
		delete(r.t.receivers, r)
		r.t.mu.Unlock()
	})
	return r.closeErr
}
