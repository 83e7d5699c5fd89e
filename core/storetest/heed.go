package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/waybill-go/waybill/core"
)

// heed acts on the control records of route and lets them go. A decision about what is out has to wait.
func (d *driver) heed(ctx context.Context, route string) error {
	controls, err := d.controls(ctx, route)
	if err != nil {
		return err
	}
	for i := range controls {
		c := &controls[i]
		if c.Kind == core.ControlDecide {
			if done, err := d.decide(ctx, c); err != nil || !done {
				if err != nil {
					return err
				}
				continue
			}
		}
		if err := d.store.Settle(ctx, d.self.Session, []core.Outcome{core.Heeded(c)}).FirstErr(); err != nil &&
			!errors.Is(err, core.ErrChanged) {
			return fmt.Errorf("heed a control record: %w", err)
		}
	}
	return nil
}

func (d *driver) controls(ctx context.Context, route string) ([]core.Control, error) {
	p, err := d.store.Read(ctx, d.self.Session, core.Look{Parts: all(route), Limit: pageSize, Bytes: math.MaxInt32})
	if err != nil {
		return nil, fmt.Errorf("read control records: %w", err)
	}
	return p.Control, nil
}

// decide carries out what an operator decided about a record, and reports whether that is done with.
func (d *driver) decide(ctx context.Context, c *core.Control) (bool, error) {
	if _, out := d.out[place{c.Route, c.Seq}]; out {
		return false, nil
	}
	ref := core.Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}
	p, err := d.store.Read(ctx, d.self.Session, core.Look{
		Parts: all(c.Route), Again: []core.Ref{ref}, Limit: pageSize,
		Bytes: math.MaxInt32,
	})
	if err != nil {
		return false, fmt.Errorf("read a record that was decided about: %w", err)
	}
	var r core.Record
	switch {
	case len(p.Again) > 0:
		r = p.Again[0]
	case len(p.AgainWaiting) > 0:
		r.Ref, r.Slot = p.AgainWaiting[0].Ref, p.AgainWaiting[0].Slot
	default:
		return true, nil
	}
	err = d.store.Settle(ctx, d.self.Session, []core.Outcome{core.Withdraw(&r, c.Reason)}).FirstErr()
	switch {
	case err == nil, errors.Is(err, core.ErrChanged):
		return true, nil
	case errors.Is(err, core.ErrBusy):
		return false, nil
	}
	return false, fmt.Errorf("withdraw a record that was decided about: %w", err)
}

// attend serves the control records of route until stop is closed.
func (d *driver) attend(ctx context.Context, route string, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		err := func() error {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.heed(ctx, route)
		}()
		if err == nil {
			err = rest(ctx, pause)
		}
		if err != nil {
			return err
		}
	}
}
