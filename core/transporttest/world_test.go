package transporttest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// world is a broker, the memory transport, with the view of it that the suite gets.
type world struct {
	tr  core.Transport
	mem *memtransport.Transport
	*link
}

// link is the state that transports of one world share: a link that can be cut, and the broker's state beside mem.
type link struct {
	mu         sync.Mutex
	cut        bool
	deaf       bool
	unanswered map[string]bool // ids that the broker has, and whose result nobody knows
	refused    transporttest.Refused
	receivers  []*brokenReceiver
	kept       []waybill.Envelope // of a log: what no queue got yet
	deliveries map[string]int     // of each message, by queue and id
	expired    map[string]int     // how often its receiver held it for too long
}

var errCut = &waybill.Error{Class: waybill.ClassOutage, Err: errors.New("the link is cut")}

func (l *link) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

var errRefused = &waybill.Error{Class: waybill.ClassOutage, Err: errors.New("the broker refuses")}

// refuses says whether the broker refuses messages, and all writes.
func (l *link) refuses() (messages, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused == transporttest.RefuseMessages || l.refused == transporttest.RefuseAll, l.refused == transporttest.RefuseAll
}

// mostBytes is the broker's limit while it refuses large messages.
const mostBytes = 1000

// tooLarge is the broker's answer to a message above its limit; nil = it takes the message.
func (l *link) tooLarge(e *waybill.Envelope) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused != transporttest.RefuseLarge || len(e.Body) <= mostBytes {
		return nil
	}
	return &waybill.Error{
		Class: waybill.ClassPermanent, Reason: waybill.ReasonTooLarge,
		Err: fmt.Errorf("topic %q: the message has %d bytes, more than most_bytes", e.Topic, e.Size()),
	}
}

func newWorld(t *testing.T, f faults) *world {
	t.Helper()
	mem, err := memtransport.New(memtransport.Options{MaxBodyBytes: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close(context.Background()) })
	w := &world{mem: mem, link: &link{unanswered: map[string]bool{}, deliveries: map[string]int{}, expired: map[string]int{}}}
	w.tr = &broken{Transport: mem, faults: f, link: w.link}
	return w
}

func (w *world) harness() transporttest.Harness {
	h := transporttest.Of(w.tr)
	h.Parked = func(_ context.Context, queue string) ([]transporttest.Parked, error) {
		var out []transporttest.Parked
		for _, p := range w.mem.Parked(queue) {
			out = append(out, transporttest.Parked{Envelope: p.Envelope, Reason: p.Reason, Err: p.Err})
		}
		return out, nil
	}
	b, ok := w.tr.(*broken)
	if !ok {
		return h
	}
	h.Reopen = func(context.Context) (core.Subscriber, error) {
		return &broken{Transport: w.mem, faults: b.faults, link: w.link}, nil
	}
	h.Cut = func(context.Context) (func() error, error) {
		set := func(cut bool) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.cut = cut
			return nil
		}
		return func() error { return set(false) }, set(true)
	}
	h.Deafen = func(context.Context) (func() error, error) {
		set := func(deaf bool) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.deaf = deaf
			return nil
		}
		return func() error { return set(false) }, set(true)
	}
	h.Refuse = func(_ context.Context, what transporttest.Refused) (func() error, error) {
		set := func(what transporttest.Refused) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.refused = what
			return nil
		}
		return func() error { return set(0) }, set(what)
	}
	h.SizeLimit = "most_bytes"
	h.Restart = w.restart
	h.Unreadable = func(ctx context.Context, queue string) error {
		return w.mem.Publish(ctx, []waybill.Envelope{{ID: "broken", Topic: queue + ".a", Headers: map[string]string{"unreadable": "yes"}}}).FirstErr()
	}
	h.ReservedNames = []string{"Reserved"}
	return h
}

// restart ends all sessions: held deliveries come again.
func (w *world) restart(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.receivers {
		if r.b.losesAtRestart {
			r.done(ctx, r.held)
		}
		if err := r.Receiver.Close(ctx); err != nil {
			return err
		}
		next, err := r.b.Transport.Subscribe(ctx, r.sub)
		if err != nil {
			return err
		}
		r.Receiver = next
	}
	return nil
}

// faults breaks a good transport: each hook that is set replaces one thing it does.
type faults struct {
	traits    func(*core.PublisherTraits)
	subTraits func(*core.SubscriberTraits)
	publish   func(f *broken, ctx context.Context, batch []waybill.Envelope) core.Results
	subscribe func(f *broken, sub core.Subscription) core.Subscription
	receive   func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error)
	settle    func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results
	close     func(r *brokenReceiver, ctx context.Context) error
	ahead     *aheadFaults // receivers are sent messages ahead
	lease     *leaseFaults // receivers hold for a time only
	oneCount  bool         // attempts are deliveries
	log       bool         // the broker is a log

	losesAtRestart, readsAnything, keepsRunning, ignoresContext, forgets bool
}

type broken struct {
	core.Transport
	faults
	*link
	n      atomic.Int64
	closed atomic.Bool
}

func (b *broken) Traits() core.PublisherTraits {
	t := b.Transport.Traits()
	t.TwoCopiesAtMost = true
	if b.log {
		t.KeepsUnread, t.DetectsUnroutable = true, false
	}
	if b.traits != nil {
		b.traits(&t)
	}
	return t
}

func (b *broken) SubscriberTraits() core.SubscriberTraits {
	t := b.Transport.SubscriberTraits()
	if b.lease != nil {
		t.HoldFor = time.Second
	}
	t.AttemptsAreDeliveries = b.oneCount
	if b.subTraits != nil {
		b.subTraits(&t)
	}
	return t
}

func errClosed() error { return &waybill.Error{Class: waybill.ClassOutage, Err: waybill.ErrClosed} }

func (b *broken) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	if b.publish != nil {
		return b.publish(b, ctx, batch)
	}
	return b.send(ctx, batch)
}

// send publishes without a fault.
func (b *broken) send(ctx context.Context, batch []waybill.Envelope) core.Results {
	switch {
	case b.closed.Load():
		return core.AllFailed(len(batch), errClosed())
	case b.isCut():
		return core.AllFailed(len(batch), errCut)
	}
	if messages, _ := b.refuses(); messages {
		return core.AllFailed(len(batch), errRefused)
	}
	fit := slices.DeleteFunc(slices.Clone(batch), func(e waybill.Envelope) bool { return b.tooLarge(&e) != nil })
	if len(fit) < len(batch) {
		res, some := make(core.Results, len(batch)), b.send(ctx, fit)
		for i := range batch {
			if res[i] = b.tooLarge(&batch[i]); res[i] == nil {
				res[i], some = some[0], some[1:]
			}
		}
		return res
	}
	res := b.answered(batch, b.Transport.Publish(ctx, b.unseen(batch)))
	if b.log {
		b.mu.Lock()
		defer b.mu.Unlock()
		for i, err := range res {
			if errors.Is(err, waybill.ErrUnroutable) {
				b.kept, res[i] = append(b.kept, batch[i].Clone()), nil
			}
		}
	}
	return res
}

// unseen returns the messages of a batch that the broker has not got yet.
func (b *broken) unseen(batch []waybill.Envelope) []waybill.Envelope {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(batch), func(e waybill.Envelope) bool { return b.unanswered[e.ID] && !b.forgets })
}

// answered returns the results of a batch, given those of what was unseen of it.
func (b *broken) answered(batch []waybill.Envelope, some core.Results) core.Results {
	b.mu.Lock()
	defer b.mu.Unlock()
	res := make(core.Results, len(batch))
	for i := range batch {
		if id := batch[i].ID; !b.unanswered[id] || b.forgets {
			res[i], some = some[0], some[1:]
		}
		switch id := batch[i].ID; {
		case !b.deaf:
			delete(b.unanswered, id)
		case res[i] == nil:
			b.unanswered[id], res[i] = true, errCut
		}
	}
	return res
}

func (b *broken) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	switch {
	case b.closed.Load():
		return nil, errClosed()
	case b.isCut():
		return nil, errCut
	}
	if b.ignoresContext {
		ctx = context.WithoutCancel(ctx)
	}
	asked := sub
	if b.subscribe != nil {
		sub = b.subscribe(b, sub)
	}
	r, err := b.Transport.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	if b.ahead != nil {
		r = newAhead(r, asked, *b.ahead)
	}
	if b.lease != nil {
		r = &leased{Receiver: r, link: b.link, f: *b.lease, held: map[*waybill.Delivery]*time.Timer{}}
	}
	out := &brokenReceiver{Receiver: r, b: b, sub: sub}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.receivers = append(b.receivers, out)
	b.kept = slices.DeleteFunc(b.kept, func(e waybill.Envelope) bool {
		return b.Transport.Publish(ctx, []waybill.Envelope{e}).FirstErr() == nil
	})
	return out, nil
}

// Close closes this transport; the broker goes on.
func (b *broken) Close(ctx context.Context) error {
	if b.closed.Swap(true) || b.keepsRunning {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.receivers {
		if r.b == b {
			_ = r.Receiver.Close(ctx)
		}
	}
	return nil
}

type brokenReceiver struct {
	core.Receiver
	b    *broken
	sub  core.Subscription
	mu   sync.Mutex
	held []*waybill.Delivery
}

// Unwrap shows whether the receiver has capabilities.
func (r *brokenReceiver) Unwrap() any { return r.Receiver }

func (r *brokenReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	receive := r.Receiver.Receive
	if f := r.b.receive; f != nil {
		receive = func(ctx context.Context, limit int) ([]*waybill.Delivery, error) { return f(r, ctx, limit) }
	}
	if r.b.isCut() {
		return nil, errCut
	}
	ds, err := receive(ctx, limit)
	r.b.mu.Lock()
	for _, d := range ds {
		if d == nil {
			continue
		}
		d.Redeliveries += r.b.expired[d.Envelope.ID]
		if r.b.oneCount {
			r.b.deliveries[d.Queue+d.Envelope.ID]++
			d.Attempt = r.b.deliveries[d.Queue+d.Envelope.ID]
			d.Redeliveries = d.Attempt - 1
		}
		if d.Envelope.Headers["unreadable"] != "" && !r.b.readsAnything {
			d.Err = errors.New("unreadable")
		}
	}
	r.b.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, ds...)
	return ds, err
}

func (r *brokenReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	if r.b.settle != nil {
		return r.b.settle(r, ctx, acks)
	}
	if r.b.isCut() {
		return core.AllFailed(len(acks), errCut)
	}
	res := r.settle(ctx, acks)
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	for i, a := range acks {
		if res[i] == nil && (a.Verdict == core.VerdictDone || a.Verdict == core.VerdictReject) {
			delete(r.b.deliveries, a.Delivery.Queue+a.Delivery.Envelope.ID)
		}
	}
	return res
}

// settle settles without a fault. Retries and rejections are copies.
func (r *brokenReceiver) settle(ctx context.Context, acks []core.Ack) core.Results {
	messages, all := r.b.refuses()
	if all {
		return core.AllFailed(len(acks), errRefused)
	}
	if !messages {
		return r.Receiver.Settle(ctx, acks)
	}
	res := core.AllFailed(len(acks), errRefused)
	for i, a := range acks {
		if a.Verdict == core.VerdictDone || a.Verdict == core.VerdictRelease {
			res[i] = r.Receiver.Settle(ctx, acks[i:i+1])[0]
		}
	}
	return res
}

func (r *brokenReceiver) Close(ctx context.Context) error {
	if r.b.close != nil {
		return r.b.close(r, ctx)
	}
	return r.Receiver.Close(ctx)
}

// done settles deliveries behind the suite's back.
func (r *brokenReceiver) done(ctx context.Context, ds []*waybill.Delivery) {
	var acks []core.Ack
	for _, d := range ds {
		acks = append(acks, core.AckDone(d))
	}
	r.Receiver.Settle(ctx, acks)
}
