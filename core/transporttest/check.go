package transporttest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
)

// side is what a check tests: the publisher, the subscriber, or both of them.
type side uint8

const (
	ofPublisher side = 1 << iota
	ofSubscriber
	ofEither = ofPublisher | ofSubscriber
)

// named is a check as it is written: it gives up by panicking with a failure, which run turns into an error.
type named struct {
	name string
	of   side
	doc  string
	fn   func(k *kit)
}

type failure struct{ err error }

func (c named) run(ctx context.Context, h Harness) error {
	ctx, cancel := context.WithTimeout(ctx, patience.For(Timeout))
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := errors.New("a function of the harness ended the goroutine, as t.FailNow does: return errors instead")
		defer func() { done <- err }()
		err = guarded(func() { c.on(ctx, h) })
	}()
	select {
	case err := <-done:
		return c.explain(err)
	case <-ctx.Done():
	}
	t := time.NewTimer(patience.For(2 * grace))
	defer t.Stop()
	select {
	case err := <-done:
		return c.explain(err)
	case <-t.C:
		return c.explain(fmt.Errorf("the check did not end within its limit: a function of the harness, or of the adapter, hangs: %w", ctx.Err()))
	}
}

// on runs the check on h.
func (c named) on(ctx context.Context, h Harness) {
	k := newKit(ctx, h)
	defer k.close()
	k.needs(c.of&ofPublisher != 0 && h.Publisher != nil || c.of&ofSubscriber != 0 && h.Subscriber != nil, "under test, only the other direction is")
	c.fn(k)
}

// explain adds the promise to a failure.
func (c named) explain(err error) error {
	if err == nil || errors.Is(err, ErrNotDeclared) {
		return err
	}
	return fmt.Errorf("%s: %w\n\tpromise: %s", c.name, err, c.doc)
}

// guarded returns the failure or the panic that ends fn.
func guarded(fn func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.err
		default:
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	fn()
	return nil
}

var errNone = errors.New("no error")

// fail gives up the check. A nil argument is printed as "no error".
func (k *kit) fail(format string, a ...any) {
	for i := range a {
		if a[i] == nil {
			a[i] = errNone
		}
	}
	panic(failure{fmt.Errorf(format+"%w", append(a, place(caller()))...)})
}

// failIf is fail if the condition holds.
func (k *kit) failIf(is bool, format string, a ...any) {
	if is {
		k.fail(format, a...)
	}
}

// place is where in the suite a failure was seen. It is an error only to be added with %w.
type place string

func (p place) Error() string { return string(p) }

// caller returns the lines of the checks that led to the failure, the innermost first.
func caller() string {
	var at []string
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if file := filepath.Base(f.File); strings.HasPrefix(file, "checks_") {
			at = append(at, fmt.Sprintf("%s:%d", file, f.Line))
		}
	}
	if at == nil {
		return ""
	}
	return "\n\tat " + strings.Join(at, ", called at ")
}
