package transporttest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Timeout bounds one check in Run.
const Timeout = 2 * time.Minute

// Run makes every check a subtest with a new harness. Checks of undeclared features are skipped.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) { runOne(t, c, newHarness) })
	}
}

// RunSpread is Run with a worker for each newHarness, side by side, since checks mostly wait. Every check runs once,
// with a harness of one worker. No two workers must share one broker or virtual host: some checks restart it.
func RunSpread(t *testing.T, newHarness ...func(t *testing.T) Harness) {
	t.Helper()
	if len(newHarness) == 0 {
		t.Fatal("no harness")
	}
	checks := make(chan Check, len(Checks()))
	for _, c := range Checks() {
		checks <- c
	}
	close(checks)
	var workers sync.WaitGroup
	for _, fn := range newHarness {
		workers.Go(func() {
			for c := range checks {
				t.Run(c.Name, func(t *testing.T) { runOne(t, c, fn) })
			}
		})
	}
	workers.Wait()
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
