package limitertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Timeout bounds one check in Run.
const Timeout = time.Minute

// Check is one promise.
type Check struct {
	// Name is unique and stable: words joined by dashes.
	Name string
	// Run returns nil if the promise holds, and else an error that says what happened instead. The limiters share
	// their limits; they can be the same.
	Run func(ctx context.Context, a, b core.Limiter) error
}

// Checks returns all checks.
func Checks() []Check {
	var all []Check
	for _, c := range []struct {
		name string
		fn   func(k *kit) error
	}{
		{"unknown-limit-is-empty", unknownLimitIsEmpty},
		{"state-is-kept", stateIsKept},
		{"names-are-apart", namesAreApart},
		{"no-update-is-lost", noUpdateIsLost},
		{"clock-is-shared", clockIsShared},
		{"panic-stores-nothing", panicStoresNothing},
		{"bad-arguments-are-refused", badArgumentsAreRefused},
		{"ended-context-ends-the-call", endedContextEndsTheCall},
	} {
		all = append(all, Check{Name: c.name, Run: func(ctx context.Context, a, b core.Limiter) error {
			return c.fn(&kit{ctx: ctx, a: a, b: b, prefix: waybill.NewID() + "/"})
		}})
	}
	return all
}

// Run makes every check a subtest. newPair returns two limiters that share their limits, as those of two processes.
func Run(t *testing.T, newPair func(t *testing.T) (a, b core.Limiter)) {
	t.Helper()
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			a, b := newPair(t)
			ctx, cancel := context.WithTimeout(t.Context(), Timeout)
			defer cancel()
			if err := c.Run(ctx, a, b); err != nil {
				t.Error(err)
			}
		})
	}
}

// kit is what a check works with.
type kit struct {
	ctx    context.Context //nolint:containedctx // a kit lives as long as one check
	a, b   core.Limiter
	prefix string // of names, unlike that of any other check
}

// set stores to, and returns what was there and the time.
func (k *kit) set(l core.Limiter, name, to string) (was string, now time.Time, err error) {
	err = l.UpdateLimit(k.ctx, k.prefix+name, func(state string, at time.Time) string {
		was, now = state, at
		return to
	})
	return was, now, err
}

// get returns the state, and changes nothing.
func (k *kit) get(l core.Limiter, name string) (was string, err error) {
	err = l.UpdateLimit(k.ctx, k.prefix+name, func(state string, _ time.Time) string {
		was = state
		return state
	})
	return was, err
}

// want returns an error if the state of a limit is not this one, for either limiter.
func (k *kit) want(name, state string) error {
	for i, l := range []core.Limiter{k.a, k.b} {
		switch got, err := k.get(l, name); {
		case err != nil:
			return err
		case got != state:
			return fmt.Errorf("limiter %d: the state of %.40q is %.80q, want %.80q", i+1, name, got, state)
		}
	}
	return nil
}
