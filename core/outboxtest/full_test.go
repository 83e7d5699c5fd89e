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

// full is the memory store with the two features that it lacks: presence, and control records that concern all owners
// of a route.
type full struct {
	*memory.Store

	mu    sync.Mutex
	drawn int64
	there map[int64]bool // tokens
	from  []*fromAll
}

// fromAll is such a control record, and the slots whose owners have yet to heed it.
type fromAll struct {
	core.Control
	left core.Slots
}

// firstFrom is the number of the first one.
const firstFrom = 1 << 40

func (f *full) Attend(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
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

func (f *full) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	r, err := f.Store.Meet(ctx, m)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range r.Members {
		token := r.Members[i].Presence
		r.Members[i].Missing = token != 0 && !f.there[token]
	}
	return r, err
}

func (f *full) Read(ctx context.Context, self core.Session, l core.Look) (core.Page, error) {
	p, err := f.Store.Read(ctx, self, l)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.from {
		if slices.ContainsFunc(l.Parts, func(part core.Part) bool { return part.Route == c.Route && part.Slots&c.left != 0 }) {
			p.Control = append(p.Control, c.Control)
		}
	}
	return p, err
}

func (f *full) Settle(ctx context.Context, self core.Session, os []core.Outcome) core.Results {
	if !slices.ContainsFunc(os, func(o core.Outcome) bool { return o.Control() >= firstFrom }) {
		return f.Store.Settle(ctx, self, os)
	}
	res := make(core.Results, len(os))
	for i := range os {
		if os[i].Control() < firstFrom {
			res[i] = f.Store.Settle(ctx, self, os[i:i+1])[0]
		} else {
			f.heed(ctx, self, os[i].Control())
		}
	}
	return res
}

func (f *full) heed(ctx context.Context, self core.Session, number int64) {
	r, _ := f.Store.Meet(ctx, core.Meeting{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from = slices.DeleteFunc(f.from, func(c *fromAll) bool {
		for _, u := range r.Units {
			if c.Number == number && u.Unit.Route == c.Route && u.Owner == self {
				c.left &^= u.Unit.Slots()
			}
		}
		return c.left == 0
	})
}

// tell writes a control record: the store's own one, if it has such ones.
func (f *full) tell(c core.Control) error {
	if c.Kind == core.ControlDecide {
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
