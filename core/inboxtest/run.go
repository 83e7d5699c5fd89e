package inboxtest

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// Timeout bounds one check in Run.
const Timeout = time.Minute

// Run makes every check a subtest with a new harness; a harness can be shared. Checks that need a missing interface of
// the harness are skipped, and told of in the log.
func Run[Tx any](t *testing.T, newHarness func(t *testing.T) Harness[Tx]) {
	t.Helper()
	conformance.Run(t, checksWith(newHarness))
}

// RunInBubble is Run with every check in a testing/synctest bubble of its own, in which waiting takes no time. The
// harness is made inside the bubble.
func RunInBubble[Tx any](t *testing.T, newHarness func(t *testing.T) Harness[Tx]) {
	t.Helper()
	conformance.RunInBubble(t, checksWith(newHarness))
}

var conformance = suitetest.Suite{Name: "inboxtest", Timeout: Timeout, NotDeclared: ErrNotDeclared}

func checksWith[Tx any](newHarness func(t *testing.T) Harness[Tx]) []suitetest.Check {
	return suitetest.With(Checks[Tx](), newHarness, func(c Check[Tx]) (string, func(context.Context, Harness[Tx]) error) { return c.Name, c.Run })
}

// Benchmark measures new messages and duplicates, each with one effect.
func Benchmark[Tx any](b *testing.B, newHarness func(b *testing.B) Harness[Tx]) {
	b.Helper()
	for _, name := range []string{"new", "duplicate"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			h := newHarness(b)
			consumer, i := waybill.NewID(), 0
			for b.Loop() {
				key := core.InboxKey{Consumer: consumer, Source: "/bench", ID: "same"}
				if name == "new" {
					key.ID = strconv.Itoa(i)
				}
				i++
				if _, err := h.Inbox().Do(b.Context(), key, func(ctx context.Context, tx Tx) error {
					return h.Effect(ctx, tx, key.ID)
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
