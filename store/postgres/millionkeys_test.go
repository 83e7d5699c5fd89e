//go:build !race

package postgres_test

import (
	"cmp"
	"os"
	"testing"

	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// TestMillionKeysStopNobody is TestWaitingKeysStopNobody with a million keys and the usual bounds. It measures the
// memory of the process: no other test runs beside it. WAYBILL_MILLION names one of the six ways, or all.
//
// It runs without the race detector, which needs other memory, and hours.
func TestMillionKeysStopNobody(t *testing.T) {
	tier.Nightly(t, "a million keys: 4 minutes each way")
	way := cmp.Or(os.Getenv("WAYBILL_MILLION"), "retries")
	ran := 0
	eachWait(t, func(t *testing.T, wait string, killed bool) {
		t.Helper()
		if name := wait + map[bool]string{true: " killed"}[killed]; way != "all" && way != name {
			t.Skip("WAYBILL_MILLION is " + way)
		}
		ran++
		o, pool := newOutbox(t, postgres.Options{})
		(&queued{crowded: &crowded{t, o, pool, dispatch.Options{}, 1_000_000}, wait: wait, memory: measure(t)}).run(killed)
	})
	if ran == 0 {
		t.Errorf("WAYBILL_MILLION: there is no way %q", way)
	}
}
