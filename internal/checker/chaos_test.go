package checker_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/relay"
)

// limit is the time within which a due and free record must be handed out when everything works. It covers the lease of
// a member that died, its crash windows, the records before the due one, and each partition that is released.
func (w *world) limit() time.Duration {
	before, partitions := w.producers*w.txs*4, len(w.routes)*w.routes[0].Partitions
	work := float64(3*before)*(w.store.Latency+w.bus.Latency).Seconds() + float64(2*partitions)*w.store.Latency.Seconds()
	return 3*w.opts.Lease + 2*time.Second + time.Duration(work*float64(time.Second))
}

// trouble has something happen to a relay.
func (w *world) trouble() {
	if len(w.crew) == 0 {
		return
	}
	p, d := w.crew[w.dice.N(len(w.crew))].p, w.dice.Up(3*w.opts.Lease)
	switch w.dice.N(3) {
	case 0:
		p.Freeze(d)
	case 1:
		p.Cut(d)
	case 2: // who joins has partitions given up to it
		p.Doom()
		w.start()
		return
	}
	if end := time.Now().Add(d); end.After(w.steady) {
		w.steady = end
	}
}

// chaos kills, stops and starts relays, and does what operators do, until its time is over.
func (w *world) chaos() {
	end := time.Now().Add(w.lasts)
	for time.Now().Before(end) {
		time.Sleep(w.dice.Up(w.lasts / 12))
		switch w.dice.N(15) {
		case 0, 1:
			w.end(true)
			w.start()
		case 2:
			w.end(false)
			w.start()
		case 3:
			w.end(true)
			time.Sleep(w.dice.Up(3 * w.opts.Lease))
			w.start()
		case 4, 5:
			w.operate(true)
		case 6:
			w.redrive()
		case 7:
			w.sweep()
		case 8:
			w.cancel()
		case 9:
			w.orderOut()
		case 10, 11, 12:
			w.trouble()
		case 13: // one joins, or leaves
			if len(w.crew) > 3 || len(w.crew) > 1 && w.dice.N(2) == 0 {
				w.end(false)
			} else {
				w.start()
			}
		}
	}
}

// orderOut skips or parks a message that is due.
func (w *world) orderOut() {
	for _, r := range w.mem.Records() {
		if r.State != core.StatePending || r.Envelope.Key == "" || w.dice.N(3) > 0 {
			continue
		}
		w.l.Ordered(checker.Ref{Route: r.Route, ID: r.Envelope.ID}, waybill.ReasonSkipped)
		ctx, cancel := context.WithTimeout(w.t.Context(), w.dice.Up(w.opts.Lease))
		w.over.Go(func() {
			defer cancel()
			err := w.mem.DecideHead(ctx, r.Route, r.Envelope.Key, r.Envelope.ID, admin.HeadSkip)
			w.l.Note("ordered out: %s/%s: %v", r.Route, r.Envelope.ID, err)
		})
		return
	}
}

// operate decides about the heads of blocked keys.
func (w *world) operate(failed bool) {
	for _, r := range w.routes {
		if r.Order != waybill.OrderPerKey {
			continue
		}
		keys, _, err := w.mem.BlockedKeys(w.t.Context(), admin.BlockedKeysRequest{Route: r.Name, BlockAfterAbandon: r.BlockAfterAbandon, Limit: 10})
		if err != nil {
			w.t.Error(err)
		}
		for i := range keys {
			k := &keys[i]
			if !failed && k.Cause != "abandoned" {
				continue
			}
			action := admin.HeadAction(1 + w.dice.N(3))
			reason := map[admin.HeadAction]waybill.Reason{admin.HeadSkip: waybill.ReasonSkipped, admin.HeadSetAside: waybill.ReasonSetAside}[action]
			w.l.Decide(checker.Ref{Route: r.Name, ID: k.Head.Envelope.ID}, reason, false, func() bool {
				if !w.blocks(&r, k) {
					return false // its owner would have to be waited for
				}
				err := w.mem.DecideHead(w.t.Context(), r.Name, k.Key, k.Head.Envelope.ID, action)
				if err != nil && !errors.Is(err, waybill.ErrNotFound) && !errors.Is(err, waybill.ErrInFlight) && !errors.Is(err, waybill.ErrInvalid) {
					w.t.Errorf("decide: %v", err)
				}
				return err == nil
			})
		}
	}
}

// blocks reports whether the head still blocks its key. One that is due waits for a topic, and has an owner who
// decides.
func (w *world) blocks(r *relay.Route, k *admin.BlockedKey) bool {
	keys, _, err := w.mem.BlockedKeys(w.t.Context(), admin.BlockedKeysRequest{Route: r.Name, BlockAfterAbandon: r.BlockAfterAbandon, Limit: 100})
	if err != nil {
		w.t.Error(err)
	}
	return slices.ContainsFunc(keys, func(now admin.BlockedKey) bool {
		return now.Head.Envelope.ID == k.Head.Envelope.ID && now.Cause != "topic"
	})
}

// redrive puts back some abandoned records.
func (w *world) redrive() {
	for _, r := range w.mem.Records() {
		if r.State != core.StateAbandoned && r.State != core.StateFailed || w.dice.N(2) == 0 {
			continue
		}
		force := w.dice.N(2) == 0
		block := slices.ContainsFunc(w.routes, func(x relay.Route) bool { return x.Name == r.Route && x.BlockAfterAbandon })
		w.l.Decide(checker.Ref{Route: r.Route, ID: r.Envelope.ID}, waybill.ReasonNone, force, func() bool {
			done, err := w.mem.Redrive(w.t.Context(), admin.RedriveRequest{
				Filter: admin.Filter{IDs: []string{r.Envelope.ID}, Routes: []string{r.Route}}, Force: force, BlockAfterAbandon: block,
			})
			if err != nil {
				w.t.Errorf("redrive: %v", err)
			}
			return done.Changed > 0
		})
	}
}

// sweep lets the store abandon what expired.
func (w *world) sweep() {
	w.l.Swept(func() (gone []checker.Ref) {
		before := map[checker.Ref]bool{}
		for _, r := range w.mem.Records() {
			before[checker.Ref{Route: r.Route, ID: r.Envelope.ID}] = r.State == core.StateAbandoned
		}
		if _, err := w.mem.Clean(w.t.Context(), "cleaner", time.Second); err != nil {
			w.t.Error(err)
		}
		for _, r := range w.mem.Records() {
			if ref := (checker.Ref{Route: r.Route, ID: r.Envelope.ID}); r.State == core.StateAbandoned && !before[ref] {
				gone = append(gone, ref)
			}
		}
		return gone
	})
}

// cancel cancels a few messages, in a transaction that may roll back.
func (w *world) cancel() {
	w.mu.Lock()
	refs := slices.Clone(w.refs)
	w.mu.Unlock()
	if !w.cancels || len(refs) == 0 {
		return
	}
	var keys []waybill.CancelKey
	for range 1 + w.dice.N(3) {
		r := refs[len(refs)-1-w.dice.N(min(len(refs), 10))]
		keys = append(keys, waybill.CancelKey{Route: r.Route, ID: r.ID})
	}
	led, tx := w.l.Begin(), w.mem.Begin()
	statuses, err := w.mem.Cancel(w.t.Context(), tx, keys...)
	if err != nil {
		led.Rollback(tx.Rollback)
		return
	}
	for i, k := range keys {
		led.Cancelled(checker.Ref{Route: k.Route, ID: k.ID}, statuses[i])
	}
	time.Sleep(w.dice.Up(w.opts.Lease))
	if w.dice.N(3) == 0 {
		led.Rollback(tx.Rollback)
	} else if err := led.Commit(tx.Commit); err != nil {
		w.t.Errorf("commit of a cancel: %v", err)
	}
}
