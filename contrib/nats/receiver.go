package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A pull asks the server for a number of messages, and they come one by one to an inbox of the receiver. They come also
// when the Receive that asked has been cancelled; then the next one gets them. Until then upkeep renews them. The
// server forgets pulls when a connection is lost, and can end them with a status. asked is the receiver's count of what
// is still to come, and begins anew then.
//
// A pull of a subscription with ReceiveBytes has that bound, and there is one at a time: pulled messages wait in
// memory. The server ends a pull before a message that does not fit. If that is the pull's first one, it is asked for
// alone.

const (
	pullFor   = 5 * time.Second // how long the server keeps a pull
	pullSlack = 2 * time.Second // after which it has not answered
	moment    = time.Second     // how long Receive waits for a lost connection
	early     = time.Second     // by how much a retry that waited may come early: clocks differ
)

// How the server says that a message does not fit in a pull, and that all messages of a pull have come.
const (
	tooLarge  = "Message Size Exceeds MaxBytes"
	completed = "Batch Completed"
)

// SubscriberTraits declares the subscriber's promises.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	return core.SubscriberTraits{
		KeyOrder: true, DelaysRetries: true, Parks: true, CountsRedeliveries: true, HoldFor: t.opts.HoldFor, Wildcards: core.WildcardsTail,
	}
}

// receiver is an open subscription. It pulls in the background of a Receive, so that a cancelled one loses nothing.
type receiver struct {
	t         *Transport
	sub       core.Subscription
	name, own string        // of the consumer, and the subject of copies for it
	wake      chan struct{} // holds a token when something has changed
	done      chan struct{}
	closeOnce sync.Once
	closeErr  error
	life      context.Context //nolint:containedctx // the client calls arrived without one; it ends with the receiver
	end       context.CancelFunc

	mu        sync.Mutex
	session   *session // with the inbox, to which messages come
	inbox     string
	pull      *nats.Subscription
	drained   chan struct{}
	fetched   []*handle            // not returned by Receive yet
	held      map[*handle]struct{} // returned and not settled
	asked     int                  // what the server was asked for and has not sent
	askedAt   time.Time
	left      int    // of the bytes of the pull, if they are bounded
	came      bool   // a message of the pull
	large     bool   // the next message is larger than a pull may be
	reconnect uint64 // the connection's number at that time
	failed    error  // what the server answered to a pull
	down      bool   // Receive has reported an outage

	wanted   []string  // subjects that the queue is bound for; nil = what comes is wanted
	wantedAt time.Time // by the server's clock
}

// Subscribe implements core.Subscriber.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	op := "subscribe to queue " + sub.Queue
	var p []string
	if sub.Queue == "" {
		p = append(p, "Queue: is empty; name it")
	}
	for _, b := range sub.Bindings {
		if i := strings.IndexByte(b, '#'); b == "" || strings.ContainsAny(b, " \t\r\n") || i >= 0 && i < len(b)-1 || i > 0 && b[i-1] != '.' {
			p = append(p, "Bindings: "+b+" must be words with dots between them; # may only be the last word")
		}
	}
	if sub.InOrder {
		p = append(p, "InOrder: is not supported on NATS; use one consumer with Concurrency 1, or another transport")
	}
	if err := waybill.Invalid("waybill/nats: subscription", p...); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, classify(op, context.Cause(ctx))
	}
	if t.ended() {
		return nil, closed(op)
	}
	name := escapeQueue(sub.Queue)
	r := &receiver{
		t: t, sub: sub, name: name, own: t.queues + name,
		wake: make(chan struct{}, 1), done: make(chan struct{}), held: map[*handle]struct{}{},
	}
	if err := t.declareQueue(ctx, r); err != nil {
		return nil, err
	}
	r.life, r.end = context.WithCancel(ctx)
	if err := r.attach(t.current.Load()); err != nil {
		r.end()
		return nil, classify(op, err)
	}
	t.mu.Lock()
	if t.ended() {
		t.mu.Unlock()
		r.end()
		_ = r.pull.Unsubscribe()
		return nil, closed(op)
	}
	t.receivers[r] = struct{}{}
	t.mu.Unlock()
	go r.upkeep()
	context.AfterFunc(r.life, func() { _ = r.Close(context.WithoutCancel(ctx)) })
	return r, nil
}

// attach subscribes to an inbox on s. The caller holds mu, or has the only reference to r.
func (r *receiver) attach(s *session) error {
	inbox, drained := s.nc.NewInbox(), make(chan struct{})
	pull, err := s.nc.Subscribe(inbox, r.arrived)
	if err != nil {
		return err
	}
	pull.SetClosedHandler(func(string) { close(drained) })
	_ = pull.SetPendingLimits(-1, -1) // what was pulled bounds it
	r.session, r.inbox, r.pull, r.drained = s, inbox, pull, drained
	r.asked, r.reconnect = 0, s.nc.Stats().Reconnects
	return nil
}

// learn notes what the queue is bound for. The server filters by subjects without overlaps, so that more can arrive
// than was asked for.
func (r *receiver) learn(info *jetstream.ConsumerInfo) {
	var wanted []string
	if _, ours := info.Config.Metadata[metaBindings]; ours {
		wanted = append(r.t.wanted(&info.Config), r.own)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted, r.wantedAt = wanted, info.TimeStamp
}

// fits reports whether a binding fits. If none does that was known when the message was stored, it asks: another
// process may have added one.
func (r *receiver) fits(subject string, stored time.Time) bool {
	for again := false; ; again = true {
		r.mu.Lock()
		wanted, at := r.wanted, r.wantedAt
		r.mu.Unlock()
		if wanted == nil || slices.ContainsFunc(wanted, func(p string) bool { return fits(p, subject) }) {
			return true
		}
		if stored.Before(at) {
			return false
		}
		if err := r.t.declareQueue(r.life, r); err != nil || again {
			return true // rather too much than too little
		}
	}
}

// arrived takes a message of the server: a delivery, or the end of a pull. The client calls it, one message at a time.
func (r *receiver) arrived(m *nats.Msg) {
	defer r.signal()
	if m.Reply == "" {
		r.pullEnded(m)
		return
	}
	h, err := r.read(m)
	if err != nil {
		return // not from JetStream
	}
	r.mu.Lock()
	r.asked, r.came = max(r.asked-1, 0), true
	if r.left > 0 {
		if r.left -= m.Size(); r.left <= 0 {
			r.asked = 0 // the server has ended the pull
		}
	}
	r.mu.Unlock()
	if wait := time.Until(h.due); wait > 0 && (h.delivered == 1 || wait > early) {
		_ = m.Respond(nak(wait)) // if it gets lost, the message comes again after HoldFor
		return
	}
	if strings.HasPrefix(m.Subject, r.t.topics) && !r.fits(m.Subject, h.stored) {
		_ = m.Respond(ackDone)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.delivered > 1 {
		r.oust(h.seq)
	}
	r.fetched = append(r.fetched, h)
}

// oust ends the holds of a message that the server has delivered again. It counts HoldFor from when it sends, which is
// before the receiver reads. The caller holds mu.
func (r *receiver) oust(seq uint64) {
	for h := range r.held {
		if h.seq == seq {
			delete(r.held, h)
			h.until = time.Time{}
		}
	}
	for _, h := range r.fetched {
		if h.seq == seq {
			h.until = time.Time{}
		}
	}
}

func (r *receiver) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// pullEnded reads a status of the server: a pull's time is over, or something is wrong.
func (r *receiver) pullEnded(m *nats.Msg) {
	status, text := m.Header.Get("Status"), m.Header.Get("Description")
	if text == completed {
		return // it is known, and the next pull can be on its way
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if left := number(m.Header, "Nats-Pending-Messages"); left > 0 {
		r.asked = max(r.asked-int(left), 0)
	} else {
		r.asked = 0
	}
	switch {
	case status == "404", status == "408": // its time is over
	case text == tooLarge:
		r.large = !r.came
	case status == "503":
		r.failed = classify("receive", nats.ErrNoResponders)
	default:
		r.failed = outage("receive", fmt.Errorf("the server ended a pull of the consumer %q: %s %s", r.name, status, text))
	}
}

// Receive implements core.Receiver.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	for away := false; ; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		ds, back, err := r.next(ctx, limit, away)
		if len(ds) > 0 || back || err != nil {
			return ds, err
		}
		timer := time.NewTimer(moment)
		select {
		case <-r.wake:
		case <-ctx.Done():
		case <-r.done:
		case <-timer.C:
			away = !r.t.current.Load().nc.IsConnected()
		}
		timer.Stop()
	}
}

// next returns the fetched deliveries, or asks for some. away: the connection has been lost for a moment. back reports
// that an outage is over.
func (r *receiver) next(ctx context.Context, limit int, away bool) (ds []*waybill.Delivery, back bool, err error) {
	select {
	case <-r.done:
		return nil, false, closed("receive")
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for bytes := 0; len(r.fetched) > 0 && len(ds) < limit && (r.sub.ReceiveBytes <= 0 || bytes < r.sub.ReceiveBytes); {
		h := r.fetched[0]
		r.fetched = r.fetched[1:]
		if now.Before(h.until) { // else it comes again
			r.held[h] = struct{}{}
			bytes += len(h.delivery.Envelope.Body)
			ds = append(ds, h.delivery)
		}
	}
	if len(ds) > 0 {
		r.down = false
		return ds, false, nil
	}
	s := r.t.current.Load()
	switch {
	case away:
		r.down = true
		return nil, false, outage("receive", nats.ErrDisconnected)
	case !s.nc.IsConnected():
		return nil, false, nil
	case r.failed != nil:
		err, r.failed, r.down = r.failed, nil, true
		return nil, false, err
	case r.down:
		r.mu.Unlock()
		err = r.t.declareQueue(ctx, r)
		r.mu.Lock()
		if err != nil {
			return nil, false, err
		}
		r.down, r.asked = false, 0
		return nil, true, nil
	}
	if s != r.session {
		select {
		case <-r.done:
			return nil, false, closed("receive")
		default:
		}
		if err := r.attach(s); err != nil {
			return nil, false, classify("receive", err)
		}
	}
	if n := s.nc.Stats().Reconnects; n != r.reconnect {
		r.asked, r.reconnect = 0, n
	}
	if r.asked > 0 && now.Sub(r.askedAt) > pullFor+pullSlack {
		r.asked, r.down = 0, true
		return nil, false, outage("receive", errors.New("the server has not answered a pull in time"))
	}
	want, bytes := limit-r.asked, r.sub.ReceiveBytes
	switch {
	case bytes > 0 && r.asked > 0:
		return nil, false, nil
	case bytes > 0 && r.large:
		want, bytes = 1, 0
	}
	if want > 0 {
		if err := r.ask(want, bytes); err != nil {
			r.down = true
			return nil, false, classify("receive", err)
		}
		r.asked, r.askedAt = r.asked+want, now
		r.left, r.came, r.large = bytes, false, false
	}
	return nil, false, nil
}

// upkeep renews what was fetched and waits for Receive, and keeps the queue's bindings: another process may have
// written them without ours.
func (r *receiver) upkeep() {
	tick := time.NewTicker(r.t.opts.HoldFor / 3)
	defer tick.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-tick.C:
		}
		if !r.t.current.Load().nc.IsConnected() {
			continue
		}
		r.mu.Lock()
		waiting := slices.Clone(r.fetched)
		r.mu.Unlock()
		for _, h := range waiting {
			_ = r.renew(r.life, h)
		}
		_ = r.t.declareQueue(r.life, r) // Receive reports what is wrong
	}
}

// Check reports whether the connection is lost. It sends no request.
func (r *receiver) Check(context.Context) error {
	if !r.t.current.Load().nc.IsConnected() {
		return outage("receive", nats.ErrDisconnected)
	}
	return nil
}

// Close implements core.Receiver. What Receive has not returned is released, and the rest goes back.
func (r *receiver) Close(ctx context.Context) error {
	r.closeOnce.Do(func() {
		close(r.done)
		r.end()
		r.closeErr = r.giveBack(ctx)
		r.t.mu.Lock()
		delete(r.t.receivers, r)
		r.t.mu.Unlock()
	})
	return r.closeErr
}

// giveBack ends the pulls, takes the deliveries that they have brought, and gives all of them back.
func (r *receiver) giveBack(ctx context.Context) error {
	ctx, cancel := r.t.bounded(ctx)
	defer cancel()
	r.mu.Lock()
	nc, pull, drained := r.session.nc, r.pull, r.drained
	r.mu.Unlock()
	if !nc.IsConnected() || pull.Drain() != nil {
		_ = pull.Unsubscribe()
		return nil // the server takes everything back after HoldFor
	}
	select {
	case <-drained:
	case <-ctx.Done():
		_ = pull.Unsubscribe()
		return classify("close", context.Cause(ctx))
	}
	r.mu.Lock()
	var jobs []job
	for _, h := range r.fetched {
		jobs = append(jobs, job{h, core.AckRelease(h.delivery)})
	}
	for h := range r.held {
		if !h.settling {
			h.settling = true
			jobs = append(jobs, job{h, core.Ack{Delivery: h.delivery}}) // goes back as it is, which counts
		}
	}
	r.fetched = nil
	r.mu.Unlock()
	res := make(core.Results, len(jobs))
	r.settle(ctx, jobs, res)
	return res.FirstErr()
}
