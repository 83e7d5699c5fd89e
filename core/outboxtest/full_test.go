package outboxtest_test

import (
	"context"
	"slices"
	"sync"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/memory"
)

// full is the memory store with the two features that it lacks: presence, and notices that concern all owners
// of a route.
type full struct {
	*memory.Store

	mu    sync.Mutex
	drawn int64
	there map[int64]bool // tokens
	from  []*fromAll
}

// fromAll is such a notice, and the slots whose owners have yet to carry it out.
type fromAll struct {
	core.Notice
	left core.Slots
}

// firstFrom is the number of the first one.
const firstFrom = 1 << 40

func (f *full) Acquire(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drawn++
	mine, gone := f.drawn, make(chan struct{})
	f.there[mine] = true
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.there, mine)
		close(gone)
	})
	return mine, gone, nil
}

func (f *full) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	r, err := f.Store.Heartbeat(ctx, m)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range r.Members {
		token := r.Members[i].Presence
		r.Members[i].PresenceLost = token != 0 && !f.there[token]
	}
	return r, err
}

func (f *full) Read(ctx context.Context, self core.Session, l core.ReadRequest) (core.ReadResult, error) {
	p, err := f.Store.Read(ctx, self, l)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.from {
		if slices.ContainsFunc(l.Slots, func(part core.RouteSlots) bool { return part.Route == c.Route && part.Slots&c.left != 0 }) {
			p.Notices = append(p.Notices, c.Notice)
		}
	}
	return p, err
}

func (f *full) Settle(ctx context.Context, self core.Session, os []core.Outcome) core.Results {
	if !slices.ContainsFunc(os, func(o core.Outcome) bool { return o.NoticeNumber() >= firstFrom }) {
		return f.Store.Settle(ctx, self, os)
	}
	res := make(core.Results, len(os))
	for i := range os {
		if os[i].NoticeNumber() < firstFrom {
			res[i] = f.Store.Settle(ctx, self, os[i:i+1])[0]
		} else {
			f.noticeDone(ctx, self, os[i].NoticeNumber())
		}
	}
	return res
}

func (f *full) noticeDone(ctx context.Context, self core.Session, number int64) {
	r, _ := f.Store.Heartbeat(ctx, core.HeartbeatRequest{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from = slices.DeleteFunc(f.from, func(c *fromAll) bool {
		for _, u := range r.Partitions {
			if c.Number == number && u.Partition.Route == c.Route && u.Owner == self {
				c.left &^= u.Partition.Slots()
			}
		}
		return c.left == 0
	})
}

// tell writes a notice: the store's own one, if it has such ones.
func (f *full) tell(c core.Notice) error {
	if c.Kind == core.NoticeDecide {
		action := admin.HeadSkip
		if c.Reason == waybill.ReasonSetAside {
			action = admin.HeadSetAside
		}
		_, err := f.Decide(c.Route, c.Key, c.ID, action)
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drawn++
	c.Number = firstFrom + f.drawn
	f.from = append(f.from, &fromAll{c, core.AllSlots})
	return nil
}
