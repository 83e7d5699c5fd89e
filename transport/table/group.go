package table

import (
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
)

// Each queue of a process is a member with settles of its own. A process makes few calls at a time, so with many queues
// settles wait for a place. Those that wait go together with the first one that gets a place, if the store is a
// GroupSettler. None waits for others to come: with a free place a settle goes at once. If they cannot be stored
// together, such as with a locked record among them, each goes alone, and only its own queue waits for it. For a moment
// all others do so, too.

// aloneFor is that moment.
const aloneFor = time.Second

// GroupSettler is an optional capability of a store. Package outboxtest tests it.
type GroupSettler interface {
	// SettleGroup settles in one call what several sessions of this process have published, the outcomes of each
	// session in its place, and reports whether all of it is stored. If not, any part of it may be: the caller
	// then calls Settle for each session. It waits for no record that a transaction has locked, and stores nothing
	// of a session that was removed.
	SettleGroup(ctx context.Context, selves []core.Session, outcomes [][]core.Outcome) bool
}

// settles are those that can go together. The transport's mu guards it.
type settles struct {
	store   GroupSettler // nil if the store is none
	waiting []*shared    // for a place
	alone   time.Time    // before then none goes with another
}

// shared is a settle that can go with others.
type shared struct {
	call   *dispatch.Call
	self   core.Session
	of     []core.Outcome
	taken  chan struct{} // closed when one of them, which has a place, takes it along
	ended  chan struct{} // closed when that call has ended
	stored bool          // by it
}

// group lets a settle wait for a place with others; nil = it goes alone. mu is held.
func (t *Transport) group(c *dispatch.Call) *shared {
	if t.settles.store == nil || c.Kind() != dispatch.CallSettle || time.Now().Before(t.settles.alone) {
		return nil
	}
	self, of := c.Publishes()
	if len(of) == 0 {
		return nil
	}
	s := &shared{call: c, self: self, of: of, taken: make(chan struct{}), ended: make(chan struct{})}
	t.settles.waiting = append(t.settles.waiting, s)
	return s
}

// settle waits for a place, and settles s and all that wait with it, unless another one takes s along. It reports
// whether it has made a call. The ways of s:
//
//  1. It gets a place first: it takes all that wait along, and makes the call for them.
//  2. Another one takes it along: it waits for the end of that call. If not all of that was stored, s is settled
//     alone.
//  3. Its time ends before: the dispatcher takes the answer for lost.
func (t *Transport) settle(ctx context.Context, s *shared) bool {
	select {
	case t.calls <- struct{}{}:
		all := t.takeAlong(s)
		if all == nil {
			<-t.calls
			break
		}
		defer func() { <-t.calls }()
		if len(all) > 1 && t.settleGroup(ctx, all) {
			s.call.Settled()
		} else {
			s.call.Do(ctx, t.store)
		}
		return true
	case <-s.taken:
	case <-ctx.Done():
		t.mu.Lock()
		t.settles.waiting = slices.DeleteFunc(t.settles.waiting, func(x *shared) bool { return x == s })
		t.mu.Unlock()
		s.call.Lose(ctx.Err())
		return false
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		s.call.Lose(ctx.Err())
		return false
	}
	if s.stored {
		s.call.Settled()
		return false
	}
	return t.do(ctx, s.call)
}

// takeAlong returns all settles that wait for a place, s among them; nil = another one has taken s along.
func (t *Transport) takeAlong(s *shared) []*shared {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.settles.waiting, s) {
		return nil
	}
	all := t.settles.waiting
	t.settles.waiting = nil
	for _, x := range all {
		close(x.taken)
	}
	return all
}

// settleGroup makes one call for all.
func (t *Transport) settleGroup(ctx context.Context, all []*shared) bool {
	selves, outcomes := make([]core.Session, len(all)), make([][]core.Outcome, len(all))
	for i, x := range all {
		selves[i], outcomes[i] = x.self, x.of
	}
	stored := t.settles.store.SettleGroup(ctx, selves, outcomes)
	if !stored {
		t.mu.Lock()
		t.settles.alone = time.Now().Add(aloneFor)
		t.mu.Unlock()
	}
	for _, x := range all {
		x.stored = stored
		close(x.ended)
	}
	return stored
}

// do makes a call alone, when there is a place. It reports whether there was one before ctx ended.
func (t *Transport) do(ctx context.Context, c *dispatch.Call) bool {
	select {
	case t.calls <- struct{}{}:
		c.Do(ctx, t.store)
		<-t.calls
		return true
	case <-ctx.Done():
		c.Lose(ctx.Err())
		return false
	}
}
