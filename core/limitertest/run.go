package limitertest

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

//go:embed *.go
var files embed.FS

var source = suitetest.Source{Files: files, NotDeclared: errNotDeclared}

// errNotDeclared is no check's answer: limiters have no optional parts.
var errNotDeclared = errors.New("not declared")

// Timeout bounds one check in Run.
const Timeout = time.Minute

// Check is one promise.
type Check struct {
	// Name is unique and stable: words joined by dashes.
	Name string
	// Run returns nil if the promise holds, and else an error that names the wrong behaviour, the promise, and the
	// line of the check. The limiters share their limits; they can be the same. It returns soon after ctx has
	// ended, even if a limiter does not.
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
			return source.Do(ctx, c.name, func() {
				if err := c.fn(&kit{ctx: ctx, a: a, b: b, prefix: waybill.NewID() + "/"}); err != nil {
					suitetest.Raise(err)
				}
			})
		}})
	}
	return all
}

// Run makes every check a subtest. newPair returns two limiters that share their limits, as those of two processes.
func Run(t *testing.T, newPair func(t *testing.T) (a, b core.Limiter)) {
	t.Helper()
	conformance.Run(t, checksWith(newPair))
}

// RunInBubble is Run with every check in a testing/synctest bubble of its own, in which waiting takes no time. The
// limiters are made inside the bubble.
func RunInBubble(t *testing.T, newPair func(t *testing.T) (a, b core.Limiter)) {
	t.Helper()
	conformance.RunInBubble(t, checksWith(newPair))
}

var conformance = suitetest.Suite{Name: "limitertest", Timeout: Timeout, NotDeclared: errNotDeclared}

func checksWith(newPair func(t *testing.T) (a, b core.Limiter)) []suitetest.Check {
	var list []suitetest.Check
	for _, c := range Checks() {
		list = append(list, suitetest.Check{Name: c.Name, Prepare: func(t *testing.T) func(context.Context) error {
			t.Helper()
			a, b := newPair(t)
			return func(ctx context.Context) error { return c.Run(ctx, a, b) }
		}})
	}
	return list
}

// kit is what a check works with.
type kit struct {
	ctx    context.Context //nolint:containedctx // a kit lives as long as one check
	a, b   core.Limiter
	prefix string // of names, unlike that of any other check
}

// set stores to, and returns the earlier state and the time.
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
