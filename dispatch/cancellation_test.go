package dispatch

// A record that is out without a hold is in flight: the rule by which applications cancel messages mirrors the one by
// which the engine hands them out. No store is needed to compare them.

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	store "github.com/waybill-go/waybill/core/rules"
)

// ST-09.
func TestCancellationMirrorsTheHandOut(t *testing.T) {
	t.Parallel()
	for n := range 1 << 4 {
		has := func(bit int) bool { return n>>bit&1 != 0 }
		r := store.Row{Ref: core.Ref{Seq: 7}, State: core.StatePending, Cancellable: has(0), MaybeSent: has(1) || has(2)}
		u, rt := store.Partition{}, &route{env: &env{opts: Options{Window: 1}}}
		if has(2) {
			r.Crashes = 1
		}
		if has(3) {
			u.MaybeOutUpTo, rt.uncertainUpTo[r.Slot] = 7, 7
		}
		item := Item{Record: core.Record{Ref: r.Ref, Cancellable: r.Cancellable, Crashes: r.Crashes}, route: rt}
		got := store.Cancellation(&r, u)
		if out := item.isPlain(); out != (got == waybill.CancelInFlight) {
			t.Errorf("%+v, crash window up to %d: handed out without a hold: %v, and a cancel says %q", r, u.MaybeOutUpTo, out, got)
		}
	}
}
