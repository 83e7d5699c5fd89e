package transporttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

// The checks of the capability admin.ParkedQueue. A transport without it skips them. RM-08.
var parkedChecks = []named{
	{"parked-list", ofSubscriber, parkedList},
	{"parked-replay", ofSubscriber, parkedReplay},
	{"parked-replay-again", ofSubscriber, parkedReplayAgain},
	{"parked-filter", ofSubscriber, parkedFilter},
	{"parked-refuses", ofSubscriber, parkedRefuses},
	{"parked-limit-and-progress", ofSubscriber, parkedLimit},
	{"parked-rate", ofSubscriber, parkedRate},
	{"parked-expired", ofSubscriber, parkedExpired},
	{"parked-purge", ofSubscriber, parkedPurge},
	{"parked-concurrently", ofSubscriber, parkedConcurrently},
}

// parkedQueue returns the capability, or skips the check.
func (k *kit) parkedQueue() admin.ParkedQueue {
	q, ok := core.As[admin.ParkedQueue](k.h.Subscriber)
	k.needs(ok && k.sub.Parks, "admin.ParkedQueue")
	return guardedParked{q, k}
}

// park publishes messages to a new queue and rejects all of them. It returns the receiver, the queue's name, and the
// messages in the order in which they came and were rejected.
func (k *kit) park(batch func(name string) []waybill.Envelope) (core.Receiver, string, []waybill.Envelope) {
	r, name := k.queue("a", "b")
	want := batch(name)
	k.publish(want...)
	parked := k.parkAll(r, len(want))
	k.depth(name, len(want))
	slices.SortFunc(want, func(a, b waybill.Envelope) int { return slices.Index(parked, a.ID) - slices.Index(parked, b.ID) })
	return r, name, want
}

// parkAll returns the ids in the order in which they were rejected, each at another time.
func (k *kit) parkAll(r core.Receiver, n int) (parked []string) {
	for range n {
		d := k.receive(r, 1)[0]
		parked = append(parked, d.Envelope.ID)
		k.settle(r, core.AckReject(d, waybill.ReasonRejected, errors.New("no good")))
		_ = sleep.For(k.ctx, time.Millisecond)
	}
	return parked
}

// depth waits until n messages are parked: a broker may count late.
func (k *kit) depth(name string, n int) {
	q := k.parkedQueue()
	ctx, cancel := k.within()
	defer cancel()
	for {
		got, err := q.ParkedDepth(ctx, name)
		if ctx.Err() == nil {
			k.must("count the parked messages", err)
		}
		if got == n && err == nil {
			return
		}
		k.failIf(sleep.For(ctx, 50*time.Millisecond) != nil, "%d messages are parked, want %d", got, n)
	}
}

func (k *kit) list(name string, f admin.ParkedFilter, limit int) []admin.Parked {
	ctx, cancel := k.within()
	defer cancel()
	got, err := k.parkedQueue().ListParked(ctx, name, f, limit)
	k.must("list the parked messages", err)
	return got
}

func (k *kit) replay(req admin.ParkedRequest, want int) {
	ctx, cancel := k.within()
	defer cancel()
	n, err := k.parkedQueue().ReplayParked(ctx, req)
	k.must("replay the parked messages", err)
	k.failIf(n != want, "replayed %d messages, want %d", n, want)
}

// A list shows parked messages, oldest first, without bodies, and changes nothing.
//
// The check looks several times: nothing changes, and everything that is known is shown.
func parkedList(k *kit) {
	start := time.Now()
	_, name, want := k.park(func(name string) []waybill.Envelope {
		first := full(name + ".a")
		return append([]waybill.Envelope{first}, messages(name+".b", 4)...)
	})
	for range 3 {
		got := k.list(name, admin.ParkedFilter{}, 10)
		k.failIf(len(got) != len(want), "%d messages are listed, want %d", len(got), len(want))
		for i, p := range got {
			e := want[i].Clone()
			e.Body = nil
			k.same(e, p.Envelope, fmt.Sprintf("parked message %d", i))
			k.failIf(p.Queue != name || p.Reason != waybill.ReasonRejected || p.Error != "no good" || p.Attempts != 1,
				"listed with queue %q, reason %q, error %q and %d attempts", p.Queue, p.Reason, p.Error, p.Attempts)
			k.failIf(p.At.Before(start.Add(-time.Minute)) || p.At.After(time.Now().Add(time.Minute)), "parked at %s", p.At)
		}
		k.depth(name, len(want))
	}
	got := k.list(name, admin.ParkedFilter{}, 2)
	k.failIf(len(got) != 2 || got[0].Envelope.ID != want[0].ID, "with limit 2: %d messages are listed", len(got))
	for i, p := range k.list(name, admin.ParkedFilter{}, 10) {
		k.failIf(p.Envelope.ID != want[i].ID, "after a look at some of them the messages are in another order: message %d is %q", i, p.Envelope.ID)
	}
	k.depth(name, len(want))
}

// A replayed message comes back to its queue as it was published, as a first attempt, and is parked no longer.
//
// The check replays one that was tried twice: it comes back as it was published, as a first attempt, and is parked no
// longer.
func parkedReplay(k *kit) {
	r, name := k.queue("a")
	want := full(name + ".a")
	k.publish(want)
	k.settle(r, core.AckRetry(k.receive(r, 1)[0], tier1, errors.New("first")))
	k.settle(r, core.AckReject(k.receive(r, 1)[0], waybill.ReasonAttempts, errors.New("second")))
	k.depth(name, 1)
	got := k.list(name, admin.ParkedFilter{}, 1)
	k.failIf(len(got) != 1 || got[0].Attempts != 2 || got[0].Reason != waybill.ReasonAttempts, "listed: %+v", got)
	k.replay(admin.ParkedRequest{Queue: name, Filter: admin.ParkedFilter{IDs: []string{want.ID}}}, 1)
	d := k.receive(r, 1)[0]
	k.same(want, d.Envelope, "replayed")
	k.failIf(d.Attempt != 1 || d.Queue != name || d.Redeliveries > 0,
		"replayed as attempt %d of queue %q with %d redeliveries", d.Attempt, d.Queue, d.Redeliveries)
	k.depth(name, 0)
	k.settle(r, core.AckRetry(d, tier1, errors.New("again"))) // the way goes on as for any other
	d = k.receive(r, 1)[0]
	k.same(want, d.Envelope, "retried after the replay")
	k.failIf(d.Attempt != 2, "retried after the replay as attempt %d", d.Attempt)
	k.settle(r, core.AckDone(d))
	k.nothing(r, "the message was done")
}

// One replay replays each message once, even if it is parked again meanwhile.
//
// The check parks what was replayed while the replay goes on: one call replays each once.
func parkedReplayAgain(k *kit) {
	const n = 20
	r, name, want := k.park(func(name string) []waybill.Envelope { return messages(name+".a", n) })
	k.replay(admin.ParkedRequest{Queue: name, All: true}, n)
	k.parkAll(r, n)
	k.depth(name, n)
	k.replay(admin.ParkedRequest{Queue: name, All: true}, n)
	k.exactly(want, k.consume(r, n))
	k.depth(name, 0)
	k.nothing(r, "all messages were done")
}

// A filter by id, topic and reason selects what fits all of its parts.
func parkedFilter(k *kit) {
	r, name := k.queue("a", "b")
	batch := append(messages(name+".a", 3), messages(name+".b", 3)...)
	k.publish(batch...)
	for range batch {
		d := k.receive(r, 1)[0]
		reason := waybill.ReasonRejected
		if d.Envelope.Topic == name+".b" {
			reason = waybill.ReasonUndecodable
		}
		k.settle(r, core.AckReject(d, reason, errors.New("no")))
	}
	k.depth(name, 6)
	for what, c := range map[string]struct {
		f    admin.ParkedFilter
		want int
	}{
		"ids":           {admin.ParkedFilter{IDs: []string{batch[1].ID, batch[5].ID}}, 2},
		"topic":         {admin.ParkedFilter{Topics: []string{name + ".a"}}, 3},
		"reason":        {admin.ParkedFilter{Reasons: []waybill.Reason{waybill.ReasonUndecodable}}, 3},
		"id and reason": {admin.ParkedFilter{IDs: []string{batch[1].ID}, Reasons: []waybill.Reason{waybill.ReasonUndecodable}}, 0},
		"other":         {admin.ParkedFilter{IDs: []string{"nobody"}}, 0},
	} {
		got := k.list(name, c.f, 10)
		k.failIf(len(got) != c.want, "by %s: %d messages are listed, want %d", what, len(got), c.want)
	}
	k.depth(name, 6)
	k.replay(admin.ParkedRequest{Queue: name, Filter: admin.ParkedFilter{
		Reasons: []waybill.Reason{waybill.ReasonUndecodable},
		IDs:     []string{batch[4].ID, batch[0].ID},
	}}, 1)
	k.exactly(batch[4:5], k.consume(r, 1))
	k.depth(name, 5)
	n, err := k.parkedQueue().PurgeParked(k.ctx, admin.ParkedRequest{
		Queue:  name,
		Filter: admin.ParkedFilter{Topics: []string{name + ".b"}},
	})
	k.must("purge", err)
	k.failIf(n != 2, "purged %d messages, want 2", n)
	k.depth(name, 3)
	k.replay(admin.ParkedRequest{Queue: name, All: true}, 3)
	k.exactly(batch[:3], k.consume(r, 3))
	k.nothing(r, "the others were purged")
}

// A request that no operator can mean is refused as ErrInvalid, and a queue that does not exist as ErrNotFound.
func parkedRefuses(k *kit) {
	q := k.parkedQueue()
	_, name, _ := k.park(func(name string) []waybill.Envelope { return messages(name+".a", 2) })
	for what, req := range map[string]admin.ParkedRequest{
		"an empty filter":  {Queue: name},
		"no queue":         {All: true},
		"a negative limit": {Queue: name, All: true, Limit: -1},
		"a negative rate":  {Queue: name, All: true, PerSecond: -1},
	} {
		for verb, call := range map[string]func(context.Context, admin.ParkedRequest) (int, error){
			"replay": q.ReplayParked,
			"purge":  q.PurgeParked,
		} {
			n, err := call(k.ctx, req)
			k.failIf(!errors.Is(err, waybill.ErrInvalid) || n != 0, "%s with %s: %d, %v", verb, what, n, err)
		}
	}
	for what, f := range map[string]admin.ParkedFilter{
		"position 0":          {Positions: []int{0}},
		"times the wrong way": {Since: time.Now(), Until: time.Now().Add(-time.Hour)},
	} {
		_, err := q.ListParked(k.ctx, name, f, 10)
		k.failIf(!errors.Is(err, waybill.ErrInvalid), "list with %s: %w", what, err)
		n, err := q.PurgeParked(k.ctx, admin.ParkedRequest{Queue: name, Filter: f})
		k.failIf(!errors.Is(err, waybill.ErrInvalid) || n != 0, "purge with %s: %d, %w", what, n, err)
	}
	edit := func(p admin.Parked) ([]byte, error) { return p.Envelope.Body, nil }
	n, err := q.PurgeParked(k.ctx, admin.ParkedRequest{Queue: name, All: true, Edit: edit})
	k.failIf(!errors.Is(err, waybill.ErrInvalid) || n != 0, "a purge that edits: %d, %w", n, err)
	for _, limit := range []int{0, -1} {
		_, err := q.ListParked(k.ctx, name, admin.ParkedFilter{}, limit)
		k.failIf(!errors.Is(err, waybill.ErrInvalid), "list with limit %d: %w", limit, err)
	}
	unknown := k.name()
	_, err = q.ParkedDepth(k.ctx, unknown)
	k.failIf(!errors.Is(err, waybill.ErrNotFound), "depth of a queue that does not exist: %w", err)
	_, err = q.ListParked(k.ctx, unknown, admin.ParkedFilter{}, 10)
	k.failIf(!errors.Is(err, waybill.ErrNotFound), "list of a queue that does not exist: %w", err)
	_, err = q.ReplayParked(k.ctx, admin.ParkedRequest{Queue: unknown, All: true})
	k.failIf(!errors.Is(err, waybill.ErrNotFound), "replay of a queue that does not exist: %w", err)
	k.depth(name, 2)
}

// A replay heeds its limit and tells its progress.
func parkedLimit(k *kit) {
	r, name, want := k.park(func(name string) []waybill.Envelope { return messages(name+".a", 10) })
	calls, looked, total := 0, 0, 0
	var wrong string
	k.replay(admin.ParkedRequest{Queue: name, All: true, Limit: 4, Progress: func(l, t int) {
		if l < looked || l > t {
			wrong = fmt.Sprintf("progress goes from %d to %d of %d", looked, l, t)
		}
		calls, looked, total = calls+1, l, t
	}}, 4)
	k.failIf(wrong != "", "%s", wrong)
	k.failIf(calls == 0 || looked < 4 || total != 10, "progress was told %d times, at last %d of %d", calls, looked, total)
	k.exactly(want[:4], k.consume(r, 4))
	k.depth(name, 6)
	k.nothing(r, "four were replayed")
}

// A replay and a purge heed their rate, and say how far they came when they are cancelled.
func parkedRate(k *kit) {
	r, name, want := k.park(func(name string) []waybill.Envelope { return messages(name+".a", 10) })
	start := time.Now()
	k.replay(admin.ParkedRequest{Queue: name, All: true, PerSecond: 20}, 10)
	took := time.Since(start)
	k.failIf(took < 400*time.Millisecond, "ten messages at 20 a second took %s", took)
	k.exactly(want, k.consume(r, 10))
	k.publish(messages(name+".b", 10)...)
	k.parkAll(r, 10)
	k.depth(name, 10)
	// Cancelled between two messages, by their progress: a call in flight would have an unknown result.
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	n, err := k.parkedQueue().PurgeParked(ctx, admin.ParkedRequest{Queue: name, All: true, PerSecond: 1, Result: func(admin.Parked, error) { cancel() }})
	k.failIf(err == nil || n == 0 || n > 5, "a purge of one message a second that was cancelled after the first: %d, %w", n, err)
	k.depth(name, 10-n)
}

// A replay leaves expired messages parked.
//
// The check replays one message whose time is over and one whose is not.
func parkedExpired(k *kit) {
	r, name := k.queue("a")
	batch := messages(name+".a", 2)
	batch[0].Expires = time.Now().Add(time.Second)
	k.publish(batch...)
	k.parkAll(r, 2)
	k.depth(name, 2)
	_ = sleep.For(k.ctx, time.Until(batch[0].Expires)+50*time.Millisecond)
	k.replay(admin.ParkedRequest{Queue: name, All: true}, 1)
	k.exactly(batch[1:], k.consume(r, 1))
	k.depth(name, 1)
	got := k.list(name, admin.ParkedFilter{}, 10)
	k.failIf(len(got) != 1 || got[0].Envelope.ID != batch[0].ID, "parked is %+v", got)
	n, err := k.parkedQueue().PurgeParked(k.ctx, admin.ParkedRequest{Queue: name, All: true})
	k.must("purge", err)
	k.failIf(n != 1, "purged %d messages, want 1", n)
	k.nothing(r, "the message was expired")
}

// A purge deletes the messages of its filter, and no more.
func parkedPurge(k *kit) {
	r, name, _ := k.park(func(name string) []waybill.Envelope { return messages(name+".a", 5) })
	n, err := k.parkedQueue().PurgeParked(k.ctx, admin.ParkedRequest{Queue: name, All: true, Limit: 2})
	k.must("purge", err)
	k.failIf(n != 2, "purged %d messages, want 2", n)
	k.depth(name, 3)
	n, err = k.parkedQueue().PurgeParked(k.ctx, admin.ParkedRequest{Queue: name, All: true})
	k.must("purge", err)
	k.failIf(n != 3, "purged %d messages, want 3", n)
	k.depth(name, 0)
	k.nothing(r, "everything was purged")
	k.replay(admin.ParkedRequest{Queue: name, All: true}, 0)
}

// Lists and replays at the same time neither lose nor double a message.
//
// The check lists and replays from several goroutines: each message comes back once, and none is left or lost.
func parkedConcurrently(k *kit) {
	const n = 100
	q := k.parkedQueue()
	r, name, want := k.park(func(name string) []waybill.Envelope { return messages(name+".a", n) })
	var replayed atomic.Int64
	k.each(6, func(i int) error {
		ctx, cancel := k.within()
		defer cancel()
		for round := 0; ctx.Err() == nil; round++ {
			if i < 3 {
				if _, err := q.ListParked(ctx, name, admin.ParkedFilter{}, 10); err != nil {
					return err
				}
				if round >= 5 {
					return nil
				}
				continue
			}
			got, err := q.ReplayParked(ctx, admin.ParkedRequest{Queue: name, All: true, Limit: 7})
			if err != nil {
				return err
			}
			if replayed.Add(int64(got)) >= n {
				return nil
			}
			if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
				return fmt.Errorf("%d of %d replayed: %w", replayed.Load(), n, err)
			}
		}
		return ctx.Err()
	})
	got := replayed.Load()
	k.failIf(got != n, "replayed %d messages, want %d", got, n)
	k.exactly(want, k.consume(r, n))
	k.depth(name, 0)
	k.nothing(r, "all messages were done")
}
