package suitetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

var errMissing = errors.New("not declared")

// suite is a source with one table: the row of a check, and that of a check with a type parameter.
var suite = Source{NotDeclared: errMissing, Files: fstest.MapFS{"suite.go": &fstest.MapFile{Data: []byte(`package suite

var checks = []named{
	{"a-holds", aHolds},
	{"b-holds", bHolds[Tx]},
}

// A holds,
// always.
func aHolds(k *kit) {}

// B holds.
func bHolds[Tx any](k *kit[Tx]) {}
`)}, "broken.go": &fstest.MapFile{Data: []byte("not go")}}}

func TestFailuresTellNamePlaceAndPromise(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		check string
		fn    func()
		want  []string
	}{
		"fails":       {"a-holds", func() { Failf("it is %d", 7) }, []string{"check a-holds (suite.go:10): it is 7\n", "about it: A holds, always."}},
		"generic":     {"b-holds", func() { Failf("no") }, []string{"check b-holds (suite.go:13): no\n", "about it: B holds."}},
		"nil":         {"a-holds", func() { Failf("got %w and %v", nil, nil) }, []string{"got nothing and nothing\n"}},
		"panics":      {"a-holds", func() { panic("oh") }, []string{"check a-holds (suite.go:10): ", "over their answer: oh\n", "source_test.go"}},
		"is raised":   {"a-holds", func() { Raise(errors.New("raised")) }, []string{"check a-holds (suite.go:10): raised\n"}},
		"is not here": {"c-holds", func() { Failf("no") }, []string{"check c-holds (a place that is not known): no\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := suite.Do(t.Context(), tt.check, tt.fn)
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want it to contain %q", err, want)
				}
			}
		})
	}
	if err := suite.Do(t.Context(), "a-holds", func() {}); err != nil {
		t.Error(err)
	}
	if err := suite.Do(t.Context(), "a-holds", func() { Failf("%w: x", errMissing) }); !errors.Is(err, errMissing) || err.Error() != "not declared: x" {
		t.Errorf("what is not declared came out as %v", err)
	}
}

// inner fails in a function of its own, as a check does in its kit.
func inner() { Failf("in a kit") }

func outer() {
	func() { inner() }()
}

func TestPlaceIsThatOfTheCheck(t *testing.T) {
	t.Parallel()
	l, ok := errors.AsType[*located](Guard(outer))
	if !ok {
		t.Fatal("a failure has no place")
	}
	own := "source_test.go:"
	for fn, want := range map[string]bool{"outer": true, "inner": true, "oute": false, "nobody": false} {
		if got := l.place(fn); strings.HasPrefix(got, own) != want {
			t.Errorf("the place of %s is %q", fn, got)
		}
	}
	if l.place("outer") == l.place("inner") {
		t.Error("the place of the check is that of the kit")
	}
	again, ok := errors.AsType[*located](Guard(func() { Raise(l) }))
	if !ok || again != l {
		t.Error("a failure that is raised again lost its place")
	}
}

// A check that never ends is left alone when its time is over.
func TestBlockedCheckIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		err := suite.Do(ctx, "a-holds", func() { <-release })
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "check a-holds (suite.go:10)") {
			t.Errorf("got %v", err)
		}
		if d := time.Since(start); d != time.Minute+grace {
			t.Errorf("a check with a minute was left alone after %s", d)
		}
	})
}

// A goroutine that is ended, as by a FailNow, is a failure, and no caller waits for it.
func TestEndedGoroutineIsAFailure(t *testing.T) {
	t.Parallel()
	err := suite.Do(t.Context(), "a-holds", func() {
		inner := &testing.T{}
		inner.FailNow()
	})
	if err == nil || !strings.Contains(err.Error(), "goroutine of the check was ended") {
		t.Errorf("got %v", err)
	}
}

// A goroutine that an adapter leaves blocked for ever in a bubble fails the check, and does not panic the binary.
func TestLeftoversOfABubbleAreAFailure(t *testing.T) {
	t.Parallel()
	err := Guard(func() {
		synctest.Test(t, func(*testing.T) { go func() { select {} }() })
	})
	if err == nil || !strings.Contains(err.Error(), "deadlock") {
		t.Errorf("got %v", err)
	}
}

func TestCallReturnsPanics(t *testing.T) {
	t.Parallel()
	if n, err := Call(func() (int, error) { return 7, errMissing }); n != 7 || !errors.Is(err, errMissing) {
		t.Errorf("got %d and %v", n, err)
	}
	if _, err := Call(func() (int, error) { panic("oh") }); err == nil || !strings.Contains(err.Error(), "oh") {
		t.Errorf("got %v", err)
	}
}
