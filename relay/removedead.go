package relay

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/chance"
	"github.com/waybill-go/waybill/internal/errtext"
)

// RemoveDead removes relays and table queues that were killed, so that their records have no owner. Relays do that by
// themselves; RemoveDead is for programs that find records owned while no relay runs. It joins the outbox as a member
// that serves nothing, and returns when each member that it sees has renewed, or was removed because it had not for its
// lease. So it takes a third of the longest lease if all are alive, and the longest lease and about a second if one is
// dead. It returns how many members have gone since it joined, those that left by themselves included.
//
// While the store is away it tries again, until ctx ends. Then it returns the store's error, or that of ctx. Other
// errors of the store end it, such as missing tables. It is safe beside running relays, and for concurrent use.
func RemoveDead(ctx context.Context, store core.OutboxStore) (gone int, err error) {
	m := &evictor{store: store, d: dispatch.New(dispatch.Options{
		Name: "waybill: removes dead members", NewSession: func() core.Session { return core.Session(chance.N(int64(1<<62)) + 1) },
	}), seen: map[core.Session]bool{}}
	for m.d.AnyMaybeDead() && ctx.Err() == nil {
		if err := m.step(ctx); err != nil && (waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured)) {
			return 0, errtext.Within("waybill/relay: remove dead members", err)
		}
		if m.d.AnyMaybeDead() {
			m.sleep(ctx)
		}
	}
	if ctx.Err() != nil {
		err = ctx.Err()
		if m.d.Err() != nil {
			err = m.d.Err()
		}
		err = errtext.Within("waybill/relay: remove dead members", err)
	}
	m.d.Stop()
	_ = m.step(context.WithoutCancel(ctx)) // a member that serves nothing hinders no other member
	return m.gone(), err
}

// evictor is a member that serves nothing, and removes members that are dead.
type evictor struct {
	store core.OutboxStore
	d     *dispatch.Dispatcher
	seen  map[core.Session]bool
}

// step makes the calls that are due, and returns the store's error.
func (m *evictor) step(ctx context.Context) error {
	for _, c := range m.d.Calls(time.Now()) {
		ctx, cancel := context.WithTimeout(ctx, c.Limit())
		c.Do(ctx, m.store)
		cancel()
		m.d.Done(time.Now(), c)
	}
	for _, other := range m.d.Membership().Members {
		m.seen[other.Session] = true
	}
	return m.d.Err()
}

// sleep waits until a call is due, or ctx ends.
func (m *evictor) sleep(ctx context.Context) {
	pause := time.NewTimer(max(time.Until(m.d.Next()), minPause))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// gone returns how many members were seen and are no longer there.
func (m *evictor) gone() int {
	n := len(m.seen)
	for _, other := range m.d.Membership().Members {
		if m.seen[other.Session] {
			n--
		}
	}
	return n
}
