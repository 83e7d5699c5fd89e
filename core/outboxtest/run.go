package outboxtest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Timeout bounds one check in Run.
const Timeout = 2 * time.Minute

// Run makes every check a subtest with a new harness; a harness can be shared, since every check works on routes of its
// own. Checks of undeclared features are skipped.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) { runOne(t, c, newHarness) })
	}
}

// RunInBubble is Run with every check in a testing/synctest bubble of its own, in which waiting takes no time. The
// harness is made inside the bubble.
func RunInBubble(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runOne(t, c, newHarness) })
		})
	}
}

func runOne(t *testing.T, c Check, newHarness func(t *testing.T) Harness) {
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
