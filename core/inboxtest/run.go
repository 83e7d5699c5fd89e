package inboxtest

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Timeout bounds one check in Run.
const Timeout = time.Minute

// Run makes every check a subtest with a new harness; a harness can be shared. Checks that need a missing interface of
// the harness are skipped.
func Run[Tx any](t *testing.T, newHarness func(t *testing.T) Harness[Tx]) {
	t.Helper()
	for _, c := range Checks[Tx]() {
		t.Run(c.Name, func(t *testing.T) { runOne(t, c, newHarness) })
	}
}

// RunInBubble is Run with every check in a testing/synctest bubble of its own, in which waiting takes no time. The
// harness is made inside the bubble.
func RunInBubble[Tx any](t *testing.T, newHarness func(t *testing.T) Harness[Tx]) {
	t.Helper()
	for _, c := range Checks[Tx]() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runOne(t, c, newHarness) })
		})
	}
}

func runOne[Tx any](t *testing.T, c Check[Tx], newHarness func(t *testing.T) Harness[Tx]) {
	t.Helper()
	h := newHarness(t)
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	switch err := c.Run(ctx, h); {
	case errors.Is(err, ErrNotDeclared):
		t.Skip(err)
	case err != nil:
		t.Error(err)
	}
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
