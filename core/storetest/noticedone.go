package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// carryOut acts on the notices of route and lets them go. A decision about what is out has to wait.
func (d *driver) carryOut(ctx context.Context, route string) error {
	notices, err := d.notices(ctx, route)
	if err != nil {
		return err
	}
	for i := range notices {
		c := &notices[i]
		if c.Kind == core.NoticeDecide {
			if done, err := d.decide(ctx, c); err != nil || !done {
				if err != nil {
					return err
				}
				continue
			}
		}
		if err := d.store.Settle(ctx, d.self.Session, []core.Outcome{core.DeleteNotice(c)}).FirstErr(); err != nil &&
			!errors.Is(err, core.ErrChanged) {
			return fmt.Errorf("heed a notice: %w", err)
		}
	}
	return nil
}

func (d *driver) notices(ctx context.Context, route string) ([]core.Notice, error) {
	p, err := d.store.Read(ctx, d.self.Session, core.ReadRequest{Slots: all(route), BlockingLimit: pageSize, Bytes: math.MaxInt32})
	if err != nil {
		return nil, fmt.Errorf("read notices: %w", err)
	}
	return p.Notices, nil
}

// decide carries out what an operator decided about a record, and reports whether that is done with.
func (d *driver) decide(ctx context.Context, c *core.Notice) (bool, error) {
	if _, out := d.out[place{c.Route, c.Seq}]; out {
		return false, nil
	}
	ref := core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}
	p, err := d.store.Read(ctx, d.self.Session, core.ReadRequest{
		Slots: all(c.Route), Recheck: []core.Ref{ref}, BlockingLimit: pageSize,
		Bytes: math.MaxInt32,
	})
	if err != nil {
		return false, fmt.Errorf("read a record that was decided about: %w", err)
	}
	var r core.Record
	switch {
	case len(p.Rechecked) > 0:
		r = p.Rechecked[0]
	case len(p.RecheckedBlocking) > 0:
		r.Ref, r.Slot = p.RecheckedBlocking[0].Ref, p.RecheckedBlocking[0].Slot
	default:
		return true, nil
	}
	err = d.store.Settle(ctx, d.self.Session, []core.Outcome{core.Cancel(&r, c.Reason)}).FirstErr()
	switch {
	case err == nil, errors.Is(err, core.ErrChanged):
		return true, nil
	case errors.Is(err, core.ErrLocked):
		return false, nil
	}
	return false, fmt.Errorf("cancel a record that was decided about: %w", err)
}

// serveNotices carries out the notices of route until stop is closed.
func (d *driver) serveNotices(ctx context.Context, route string, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		err := func() error {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.carryOut(ctx, route)
		}()
		if err == nil {
			err = suitetest.Rest(ctx, pause)
		}
		if err != nil {
			return err
		}
	}
}
