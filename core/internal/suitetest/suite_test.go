package suitetest

import (
	"errors"
	"fmt"
	"testing"
)

// Skipped checks are listed under their reason, each reason once.
func TestTally(t *testing.T) {
	t.Parallel()
	missing := errors.New("not declared")
	sum := &tally{names: map[string][]string{}}
	sum.ran()
	sum.skip("a", fmt.Errorf("%w: KeyOrder", missing))
	sum.skip("b", fmt.Errorf("%w: Replace", missing))
	sum.skip("c", fmt.Errorf("%w: KeyOrder", missing))
	want := "storetest: 1 of 4 checks ran\n  skipped, not declared: KeyOrder: a, c\n  skipped, not declared: Replace: b"
	if got := sum.text("storetest", 4); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A call that may fail hides no panic of the adapter.
func TestTry(t *testing.T) {
	t.Parallel()
	if !Try(func() {}) || Try(func() { Failf("busy") }) {
		t.Error("Try does not tell a failure from a success")
	}
	if err := Guard(func() { Try(func() { panic("oh") }) }); err == nil {
		t.Error("Try has hidden a panic")
	}
}
