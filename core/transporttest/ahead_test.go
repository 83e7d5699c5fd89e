package transporttest_test

import (
	"context"
	"slices"
	"sync"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// ahead is a receiver that is sent messages ahead: a core.Pauser.
type ahead struct {
	core.Receiver
	inOrder bool
	limit   int // of the subscription
	f       aheadFaults

	mu       sync.Mutex
	prefetch int
	buf      []*waybill.Delivery
	held     map[*waybill.Delivery]bool // returned and not settled
	settled  chan struct{}
}

// aheadFaults are ways to get it wrong.
type aheadFaults struct {
	noLimit, keepsAtPause, releasesAllAtPause, ignoresResume, raisesLate bool
}

func newAhead(r core.Receiver, sub core.Subscription, f aheadFaults) *ahead {
	limit := sub.Prefetch
	if limit == 0 {
		limit = 20
	}
	return &ahead{Receiver: r, inOrder: sub.InOrder, limit: limit, f: f, prefetch: limit, held: map[*waybill.Delivery]bool{}, settled: make(chan struct{}, 1)}
}

func (a *ahead) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	for {
		a.mu.Lock()
		room := a.prefetch - len(a.held) - len(a.buf)
		if a.f.noLimit {
			room = 1000
		}
		if len(a.buf) > 0 {
			n := min(limit, len(a.buf))
			ds := a.buf[:n:n]
			a.buf = a.buf[n:]
			for _, d := range ds {
				a.held[d] = true
			}
			a.mu.Unlock()
			return ds, nil
		}
		a.mu.Unlock()
		if room < 1 {
			select {
			case <-a.settled:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		ds, err := a.Receiver.Receive(ctx, room)
		if err != nil {
			return nil, err
		}
		a.mu.Lock()
		a.buf = append(a.buf, ds...)
		a.mu.Unlock()
	}
}

func (a *ahead) Settle(ctx context.Context, acks []core.Ack) core.Results {
	res := a.Receiver.Settle(ctx, acks)
	a.mu.Lock()
	defer a.mu.Unlock()
	released := slices.ContainsFunc(acks, func(x core.Ack) bool { return x.Verdict == core.VerdictRelease })
	if a.inOrder && released { // what is behind it waits
		for _, d := range a.buf {
			a.Receiver.Settle(ctx, []core.Ack{core.AckRelease(d)})
		}
		a.buf = nil
	}
	for i, err := range res {
		if err == nil {
			delete(a.held, acks[i].Delivery)
		}
	}
	select {
	case a.settled <- struct{}{}:
	default:
	}
	return res
}

func (a *ahead) Pause(ctx context.Context) error {
	a.mu.Lock()
	back := a.buf
	if a.f.keepsAtPause {
		back = nil
	} else {
		a.buf = nil
	}
	if a.f.releasesAllAtPause {
		for d := range a.held {
			back = append(back, d)
		}
		clear(a.held)
	}
	a.mu.Unlock()
	var acks []core.Ack
	for _, d := range back {
		acks = append(acks, core.AckRelease(d))
	}
	return a.Receiver.Settle(ctx, acks).FirstErr()
}

func (a *ahead) Resume(_ context.Context, prefetch int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.f.raisesLate && prefetch > a.prefetch && len(a.held) >= a.prefetch {
		return nil // the next arrival would tell it
	}
	if a.prefetch = a.limit; prefetch > 0 && !a.f.ignoresResume {
		a.prefetch = prefetch
	}
	return nil
}
