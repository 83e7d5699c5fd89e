package limitertest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/sleep"
)

// A limit that was never updated has the empty state, and it stays unknown when it is not changed.
func unknownLimitIsEmpty(k *kit) error {
	return errors.Join(k.want("unknown", ""), k.want("unknown", ""))
}

// The next update is given the state that the last one stored, to the byte, through either limiter.
func stateIsKept(k *kit) error {
	states := []string{
		"1", `{"next":1732413000123456,"holders":{"a":{"slots":1}}}`, "ü 🗝 '\"\\%_{}$1\n\t ", "", "again",
		strings.Repeat("0123456789abcdef", 1<<16), " ", "",
	}
	before := ""
	for i, state := range states {
		l := k.a
		if i%2 == 1 {
			l = k.b
		}
		switch was, _, err := k.set(l, "kept", state); {
		case err != nil:
			return err
		case was != before:
			return fmt.Errorf("update %d was given %.80q, want %.80q", i+1, was, before)
		}
		if err := k.want("kept", state); err != nil {
			return err
		}
		before = state
	}
	return nil
}

// Limits whose names differ in any way are different.
func namesAreApart(k *kit) error {
	long := strings.Repeat("x", waybill.MaxNameBytes-len(k.prefix)-1)
	names := []string{"a", "A", "a ", " a", "a/b", "ä", "Ä", "a\u0308", "'\"\\%_", long + "1", long + "2"}
	for _, name := range names {
		if _, _, err := k.set(k.a, name, "of "+name); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := k.want(name, "of "+name); err != nil {
			return err
		}
	}
	return nil
}

// Updates at the same time all count: each is given what another one stored.
func noUpdateIsLost(k *kit) error {
	const workers, each = 8, 12
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for n := range workers {
		l := k.a
		if n%2 == 1 {
			l = k.b
		}
		wg.Go(func() {
			for done := 0; done < each; {
				_, err := suitetest.Call(func() (any, error) {
					return nil, l.UpdateLimit(k.ctx, k.prefix+"count", func(state string, _ time.Time) string {
						n, _ := strconv.Atoi(state)
						return strconv.Itoa(n + 1)
					})
				})
				if waybill.ClassOf(err) == waybill.ClassOutage && sleep.For(k.ctx, time.Millisecond) == nil {
					continue // too many at once: the caller asks again
				}
				if done++; err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	return k.want("count", strconv.Itoa(workers*each))
}

// The time goes on, and is the same for all.
func clockIsShared(k *kit) error {
	_, first, err := k.set(k.a, "clock", "1")
	if err != nil {
		return err
	}
	if first.IsZero() {
		return errors.New("the time is zero")
	}
	last := first
	for i := range 6 {
		l := k.b
		if i%2 == 1 {
			l = k.a
		}
		_, now, err := k.set(l, "clock", strconv.Itoa(i+2))
		if err != nil {
			return err
		}
		if now.Before(last) {
			return fmt.Errorf("the time went back from %s to %s", last, now)
		}
		last = now
		if err := sleep.For(k.ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	if !last.After(first) {
		return fmt.Errorf("the time stays at %s", last)
	}
	return nil
}

// A change that panics stores nothing and leaves nothing locked. The panic may go on or become an error.
func panicStoresNothing(k *kit) error {
	if _, _, err := k.set(k.a, "panic", "before"); err != nil {
		return err
	}
	err := func() (err error) {
		defer func() {
			if recover() != nil {
				err = errors.New("a panic")
			}
		}()
		return k.a.UpdateLimit(k.ctx, k.prefix+"panic", func(string, time.Time) string { panic("in change") })
	}()
	if err == nil {
		return errors.New("a change that panicked was a success")
	}
	done := make(chan error, 1)
	go func() {
		_, err := suitetest.Call(func() (any, error) { return nil, k.want("panic", "before") })
		done <- err
	}()
	err, ended := suitetest.Come(done)
	if !ended {
		return errors.New("no update ends after a panic")
	}
	return err
}

// A name that is empty, too long or no text is refused, and so is a state that is too long. Nothing is stored then.
func badArgumentsAreRefused(k *kit) error {
	for _, name := range []string{"", strings.Repeat("x", waybill.MaxNameBytes+1), "a\x00b", "\xff"} {
		err := k.a.UpdateLimit(k.ctx, name, func(string, time.Time) string { return "stored" })
		if !errors.Is(err, waybill.ErrInvalid) {
			suitetest.Failf("the name %.20q: got %w, want waybill.ErrInvalid", name, err)
		}
	}
	if _, _, err := k.set(k.a, "large", strings.Repeat("x", 1<<20+1)); !errors.Is(err, waybill.ErrInvalid) {
		suitetest.Failf("a state of more than 1 MiB: got %w, want waybill.ErrInvalid", err)
	}
	return k.want("large", "")
}

// A call with an ended context fails.
func endedContextEndsTheCall(k *kit) error {
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	err := k.a.UpdateLimit(ctx, k.prefix+"ended", func(string, time.Time) string { return "stored" })
	if err == nil {
		return errors.New("a call with an ended context was a success")
	}
	return k.want("ended", "")
}
