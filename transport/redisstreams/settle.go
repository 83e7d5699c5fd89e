package redisstreams

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A settle is a script, so that the server checks the holder, writes the copy and removes the entry in one step: no
// message is in two places or in none. A lost answer leaves a doubt: a delivery that has no holder afterwards was
// settled by the call before.

const (
	// settleChunk bounds the settlements of one script call.
	settleChunk = 256
	// settleCalls bounds the script calls of one Settle that are under way.
	settleCalls = 4
)

var (
	errLost = outage("settle", waybill.ErrLeaseLost)
	errGone = outage("settle", fmt.Errorf("%w: the entry was trimmed or deleted by somebody else, and its message is gone: never trim the keys of a bus",
		waybill.ErrLeaseLost))
)

// Settle implements core.Receiver. The server settles only deliveries that this receiver holds, and makes the copy for
// a retry or a rejection in the same step.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	select {
	case <-r.closing:
		return core.AllFailed(len(acks), outage("settle", waybill.ErrClosed))
	default:
		return r.settle(ctx, acks)
	}
}

func (r *receiver) settle(ctx context.Context, acks []core.Ack) core.Results {
	results := make(core.Results, len(acks))
	slots := make([]int, 0, len(acks))
	for i := range acks {
		if results[i] = r.settleable(&acks[i]); results[i] == nil {
			slots = append(slots, i)
		}
	}
	now := time.Now()
	calls := 1 // what goes back does so in order
	if !slices.ContainsFunc(acks, func(a core.Ack) bool { return a.Verdict != core.VerdictDone }) {
		calls = settleCalls
	}
	if len(slots) <= settleChunk { // needs no goroutine
		r.settlePart(ctx, acks, slots, results, now)
		return results
	}
	for some := range slices.Chunk(slots, calls*settleChunk) {
		var under sync.WaitGroup
		for part := range slices.Chunk(some, settleChunk) {
			under.Go(func() { r.settlePart(ctx, acks, part, results, now) })
		}
		under.Wait()
	}
	return results
}

// settleable checks that a can be settled.
func (r *receiver) settleable(a *core.Ack) error {
	var h *handle
	if a.Delivery != nil {
		h, _ = a.Delivery.Handle.(*handle)
	}
	if h == nil || h.r != r {
		return waybill.Invalid("waybill/redisstreams: settle", "Delivery: did not come from this receiver")
	}
	if a.Verdict == core.VerdictNone || a.Verdict > core.VerdictRelease {
		return waybill.Invalid("waybill/redisstreams: settle", "Verdict: is none of done, retry, reject and release")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[h.id] != h {
		return errLost
	}
	return nil
}

// settlePart settles deliveries with one call of the script. After an error the result is unknown: the delivery stays
// held, marked as unsure. With an answer each is held no more, for any code.
func (r *receiver) settlePart(ctx context.Context, acks []core.Ack, slots []int, results core.Results, now time.Time) {
	args := make([]any, 0, 1+len(slots))
	args = append(args, r.name)
	for _, i := range slots {
		args = append(args, r.pack(&acks[i], now))
	}
	codes, err := call(ctx, r.t, "settle", func(ctx context.Context) ([]int64, error) {
		return settleScript.Run(ctx, r.t.client, []string{r.queue, r.wakeUps, r.delayed, r.due, r.parked}, args...).Int64Slice()
	})
	if noGroup(err) { // the queue was deleted, and what it held
		codes, err = slices.Repeat([]int64{codeNobodys}, len(slots)), nil
	}
	if err == nil && len(codes) != len(slots) {
		err = outage("settle", fmt.Errorf("the server answered %d settlements with %d codes", len(slots), len(codes)))
	}
	r.note(err)
	gone := int64(0)
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, i := range slots {
		h, _ := acks[i].Delivery.Handle.(*handle)
		if err != nil {
			h.unsure = true
			results[i] = err
			continue
		}
		if r.held[h.id] == h {
			delete(r.held, h.id)
		}
		// A delivery without a holder after a lost answer was settled then.
		if codes[k] == codeOthers || codes[k] == codeNobodys && !h.unsure {
			results[i] = errLost
		}
		if codes[k] == codeGone {
			results[i] = errGone
			gone++
		}
	}
	r.tellGone(gone)
}

// The codes of the script. 0: it is settled. codeOthers: another receiver holds it. codeNobodys: no receiver does;
// after a lost answer it was settled then. codeGone: its entry is gone from the stream.
const (
	codeOthers  = 1
	codeNobodys = 2
	codeGone    = 3
)

// pack returns the script's arguments for a. A copy keeps all fields of the entry, and gets those of the verdict in
// front.
func (r *receiver) pack(a *core.Ack, now time.Time) []byte {
	h, _ := a.Delivery.Handle.(*handle)
	verdict := a.Verdict.String()
	var set []string
	switch a.Verdict {
	case core.VerdictRetry:
		attempt := h.attempt
		if !a.SameAttempt {
			attempt++
		}
		set = []string{fieldAttempt, strconv.Itoa(attempt)}
		if a.Err != "" {
			set = append(set, fieldError, a.Err)
		}
	case core.VerdictReject:
		set = []string{
			fieldAttempt, strconv.Itoa(max(h.attempt, a.Delivery.Attempt)), // retries in place count, too
			fieldReason, string(a.Reason), fieldError, a.Err, fieldQueue, r.sub.Queue, fieldParkedAt, now.UTC().Format(time.RFC3339Nano),
		}
		if r.sub.DropFailed {
			verdict, set = core.VerdictDone.String(), nil
		}
	case core.VerdictDone, core.VerdictRelease, core.VerdictNone:
	}
	b := packArray(nil, 4)
	b = packString(b, h.id)
	b = packString(b, verdict)
	b = packInt(b, a.Delay.Milliseconds())
	return packStrings(packArray(b, len(set)), set)
}

// RenewDeliveries implements core.DeliveryRenewer. More than Options.HoldFor is not possible.
func (r *receiver) RenewDeliveries(ctx context.Context, deliveries []*waybill.Delivery, d time.Duration) core.Results {
	results := make(core.Results, len(deliveries))
	hold := r.t.opts.HoldFor
	args := []any{r.name, hold.Milliseconds(), max(hold-d, 0).Milliseconds()}
	slots := make([]int, 0, len(deliveries))
	for i, del := range deliveries {
		ack := core.AckDone(del)
		if results[i] = r.settleable(&ack); results[i] == nil {
			h, _ := del.Handle.(*handle)
			args = append(args, h.id)
			slots = append(slots, i)
		}
	}
	if len(slots) == 0 {
		return results
	}
	codes, err := call(ctx, r.t, "renew", func(ctx context.Context) ([]int64, error) {
		return renewScript.Run(ctx, r.t.client, []string{r.queue, r.active}, args...).Int64Slice()
	})
	r.note(err)
	for k, i := range slots {
		switch {
		case err != nil:
			results[i] = err
		case k < len(codes) && codes[k] != 0:
			results[i] = errLost
		}
	}
	return results
}
