package suitetest

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// located is an error of a check, and the calls that led to it.
type located struct {
	err   error
	calls []uintptr
}

func (l *located) Error() string { return l.err.Error() }
func (l *located) Unwrap() error { return l.err }

// errNothing stands for an argument that is nil, so that %w shows it too.
var errNothing = errors.New("nothing")

// Failf makes the check give up. An argument that is nil is shown as "nothing", also by %w. The check must run in
// [Guard].
func Failf(format string, a ...any) {
	for i := range a {
		if a[i] == nil {
			a[i] = errNothing
		}
	}
	calls := make([]uintptr, 50)
	calls = calls[:runtime.Callers(2, calls)]
	panic(&located{fmt.Errorf(format, a...), calls})
}

// Raise makes the check give up with what [Guard] returned for a part of it.
func Raise(err error) {
	if l, ok := errors.AsType[*located](err); ok {
		panic(l)
	}
	Failf("%w", err)
}

// Guard runs fn and returns the failure with which it gave up. A panic of the adapter is a failure too.
func Guard(fn func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *located:
			err = p
		default:
			err = fmt.Errorf("a panic in the adapter, in the harness, or over their answer: %v\n%s", p, debug.Stack())
		}
	}()
	fn()
	return nil
}

// Try runs fn, which may fail, and reports whether it did not. A panic of the adapter goes on.
func Try(fn func()) bool {
	err := Guard(fn)
	if _, failed := errors.AsType[*located](err); err != nil && !failed {
		Raise(err)
	}
	return err == nil
}

// Call runs fn, for a goroutine of a check: a panic of the adapter, or a failure, is an error.
func Call[T any](fn func() (T, error)) (out T, err error) {
	if failed := Guard(func() { out, err = fn() }); failed != nil {
		return out, failed
	}
	return out, err
}

// place returns the file and line of the innermost call in the function fn, or in a function within it; "" if there is
// none.
func (l *located) place(fn string) string {
	frames := runtime.CallersFrames(l.calls)
	for more := len(l.calls) > 0; more; {
		var f runtime.Frame
		f, more = frames.Next()
		_, name, _ := strings.Cut(f.Function[strings.LastIndexByte(f.Function, '/')+1:], ".")
		if rest, ok := strings.CutPrefix(name, fn); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return fmt.Sprintf("%s:%d", f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line)
		}
	}
	return ""
}

// Parallel runs fn n times at once and gives up with the first failure.
func Parallel(n int, fn func(i int)) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = Guard(func() { fn(i) }) })
	}
	wg.Wait()
	if err := cmp.Or(errs...); err != nil {
		Raise(err)
	}
}
