package patience

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a test that notes that it failed, and ends as a test does.
type fake struct {
	TB
	failed string
}

func (f *fake) Helper()                  {}
func (f *fake) Context() context.Context { return f.TB.Context() }
func (f *fake) Fatalf(format string, args ...any) {
	f.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// verdict runs fn in a test of its own, and returns why it failed.
func verdict(t *testing.T, fn func(tb TB)) string {
	t.Helper()
	f := &fake{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(f)
	}()
	<-done
	return f.failed
}

// The limit counts from the last progress: a wait of ten limits that moves succeeds, one that stands fails.
func TestMoving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, begin := For(Limit), time.Now()
		steps := func() int { return int(time.Since(begin) / (limit / 2)) }
		if text := verdict(t, func(tb TB) {
			Moving(tb, "steps", func() (int, bool) { n := steps(); return n, n >= 20 })
		}); text != "" {
			t.Errorf("a wait that moves failed: %s", text)
		}
		if text := verdict(t, func(tb TB) {
			Moving(tb, "steps", func() (int, bool) { return min(steps(), 22), false })
		}); text == "" {
			t.Error("a wait that stands did not fail")
		}
		if took := time.Since(begin) - 11*limit; took < limit || took > limit+time.Second {
			t.Errorf("it stood for %s, want %s", took, limit)
		}
		if text := verdict(t, func(tb TB) { Until(tb, "never", func() bool { return false }) }); text == "" {
			t.Error("Until does not end")
		}
	})
}

func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, moved := Context(t.Context(), time.Second)
		for range 10 {
			time.Sleep(For(time.Second) - time.Millisecond)
			moved()
		}
		if ctx.Err() != nil {
			t.Fatal("it ended although there was progress")
		}
		time.Sleep(For(time.Second))
		synctest.Wait()
		if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			t.Errorf("without progress: %v", context.Cause(ctx))
		}
	})
}

func TestLoad(t *testing.T) {
	for text, want := range map[string]float64{
		"0.20 0.18 0.12 1/80 11206":  1,
		"7.50 0.18 0.12 3/80 11206":  7.5,
		"0.50 0.18 0.12 16/80 11206": 16,
		"":                           0,
		"x y z":                      0,
	} {
		if got := load(text); got != want {
			t.Errorf("load(%q) = %v, want %v", text, got, want)
		}
	}
	if bounded(0) != 1 || bounded(100) != 20 || bounded(3) != 3 {
		t.Error("the factor is not between 1 and 20")
	}
}
