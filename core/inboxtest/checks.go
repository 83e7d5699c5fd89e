package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// A handler that succeeds commits its effect and the mark. IN-01, IN-02.
func markAndEffect[Tx any](k *kit[Tx]) {
	k.do("a new message", k.key("1"), core.InboxNew, k.effect("e"))
	k.effects("after a new message", "e", 1)
	k.do("the same message", k.key("1"), core.InboxDuplicate, k.never)
}

// A message that was handled is a duplicate from then on, and the handler does not run. IN-01.
func duplicateDoesNotRun[Tx any](k *kit[Tx]) {
	k.do("a new message", k.key("1"), core.InboxNew, k.effect("e"))
	for range 3 {
		k.do("the same message", k.key("1"), core.InboxDuplicate, k.never)
	}
	k.effects("after a message and three duplicates", "e", 1)
}

// Consumer, source and id make the key: two messages that differ in one of them are two. IN-01.
func keyIsConsumerSourceAndID[Tx any](k *kit[Tx]) {
	c, long := k.consumer, strings.Repeat("x", waybill.MaxNameBytes)
	keys := []core.InboxKey{
		{Consumer: c, Source: "/a", ID: "1"},
		{Consumer: c + "2", Source: "/a", ID: "1"},
		{Consumer: c, Source: "/b", ID: "1"},
		{Consumer: c, Source: "/a", ID: "2"},
		{Consumer: c, Source: "/A", ID: "1"},  // case counts
		{Consumer: c, Source: "/a", ID: "1 "}, // so does space
		{Consumer: c, Source: "/a ", ID: "1"},
		{Consumer: c + " ", Source: "/a", ID: "1"},
		{Consumer: c, Source: "/a", ID: " 1"},
		{Consumer: c, Source: "/a", ID: "x"},
		{Consumer: c, Source: "/a", ID: "X"},
		{Consumer: "C" + c[1:], Source: "/a", ID: "1"},
		{Consumer: c, Source: "/a", ID: "e"},
		{Consumer: c, Source: "/a", ID: "é"}, // accents count
		{Consumer: c, Source: "/a", ID: "e\u0301"},
		{Consumer: c, Source: "/a/", ID: "1"},
		{Consumer: c, Source: "/", ID: "a1"}, // nothing is just joined
		{Consumer: c, Source: "/a1", ID: "ü 🗝 '\"\\%_"},
		{Consumer: c, Source: long, ID: long},
	}
	for i, key := range keys {
		k.do(fmt.Sprintf("key %d of several that differ", i), key, core.InboxNew, k.effect("e"))
	}
	k.effects("after several messages", "e", len(keys))
	for i, key := range keys {
		k.do(fmt.Sprintf("key %d again", i), key, core.InboxDuplicate, k.never)
	}
}

// A key that is incomplete or too long is refused before anything happens. IN-01.
func badKeyIsRefused[Tx any](k *kit[Tx]) {
	for what, key := range k.badKeys() {
		err := k.refused("a key that has "+what, key, k.effect("e"))
		k.failIf(!errors.Is(err, waybill.ErrInvalid), "a key that has %s: got %w, want waybill.ErrInvalid", what, err)
	}
	k.effects("after bad keys", "e", 0)
}

// A handler that fails leaves neither effect nor mark, its error comes out, and the message can be handled again.
// IN-04.
func failureLeavesNoMark[Tx any](k *kit[Tx]) {
	for range 2 {
		err := k.refused("a failing handler", k.key("1"), func(ctx context.Context, tx Tx) error {
			if err := k.h.Effect(ctx, tx, k.name("e")); err != nil {
				return err
			}
			return waybill.Reject(errHandler)
		})
		k.failIf(!errors.Is(err, errHandler) || waybill.ClassOf(err) != waybill.ClassPermanent,
			"the handler's error came out as %w", err)
		k.effects("after a failing handler", "e", 0)
	}
	k.do("the message again", k.key("1"), core.InboxNew, k.effect("e"))
	k.effects("after a retry", "e", 1)
}

// A handler that panics leaves neither effect nor mark, and no transaction open. The panic may go on or become an
// error. IN-04.
func panicLeavesNoMark[Tx any](k *kit[Tx]) {
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(errHandler) {
				panic(p)
			}
		}()
		status, err := k.box.Do(k.ctx, k.key("1"), func(ctx context.Context, tx Tx) error {
			if err := k.h.Effect(ctx, tx, k.name("e")); err != nil {
				return err
			}
			panic(errHandler)
		})
		k.failIf(err == nil, "Do returned status %s and no error for a handler that panicked", status)
	}()
	k.effects("after a panic", "e", 0)
	k.do("the message again", k.key("1"), core.InboxNew, k.effect("e"))
	k.effects("after a retry", "e", 1)
}

// When the context ends before the commit, either everything is committed or nothing is. IN-01, IN-04.
func endedContextLeavesNoMark[Tx any](k *kit[Tx]) {
	ctx, cancel := context.WithCancel(k.ctx)
	status, err := k.box.Do(ctx, k.key("1"), func(ctx context.Context, tx Tx) error {
		defer cancel()
		return k.h.Effect(ctx, tx, k.name("e"))
	})
	if err == nil {
		k.failIf(status != core.InboxNew, "got status %s without an error", status)
		k.effects("after a success", "e", 1)
		return
	}
	k.effects("after a failure", "e", 0)
	k.do("the message again", k.key("1"), core.InboxNew, k.effect("e"))
	status, err = k.box.Do(ctx, k.key("2"), k.never)
	k.failIf(err == nil || status != core.InboxNone, "with an ended context: got status %s and error %v", status, err)
}

// The effect is part of the inbox's transaction: no other transaction sees it before the handler has ended. IN-01,
// IN-02.
func effectIsHiddenUntilCommit[Tx any](k *kit[Tx]) {
	running, begin, finish := started()
	var err error
	var once sync.Once // the inbox may run it again
	done := k.start(k.ctx, k.key("1"), func(ctx context.Context, tx Tx) error {
		again := k.h.Effect(ctx, tx, k.name("e"))
		once.Do(func() { err = again })
		begin()
		<-finish
		return again
	})
	k.arrive(running, done)
	ctx, cancel := context.WithTimeout(k.ctx, grace)
	defer cancel()
	n, errCount := 0, error(nil)
	if err == nil {
		n, errCount = k.h.Effects(ctx, k.name("e"))
	}
	close(finish)
	r := k.await("the handler", done)
	switch {
	case err != nil || r.err != nil:
		k.fail("the handler failed: %w", errors.Join(err, r.err))
	case errCount == nil && n != 0: // a store may not let anyone read meanwhile
		k.fail("an effect is visible before its transaction has committed")
	}
	k.effects("after the commit", "e", 1)
}

// Of two deliveries at the same time the second waits for the first and is a duplicate. IN-03.
func concurrentDuplicateWaits[Tx any](k *kit[Tx]) {
	k.concurrent(nil, core.InboxDuplicate)
}

// If the first of two deliveries at the same time fails, the second runs. IN-03.
func concurrentRunsAfterRollback[Tx any](k *kit[Tx]) {
	k.concurrent(errHandler, core.InboxNew)
}

func (k *kit[Tx]) concurrent(firstErr error, want core.InboxStatus) {
	running, begin, finish := started()
	var mu sync.Mutex
	active, most := 0, 0
	handle := func(hold bool) handler[Tx] {
		return func(ctx context.Context, tx Tx) error {
			mu.Lock()
			active++
			most = max(most, active)
			mu.Unlock()
			defer func() {
				mu.Lock()
				active--
				mu.Unlock()
			}()
			err := k.h.Effect(ctx, tx, k.name("e"))
			if !hold {
				return err
			}
			begin()
			<-finish
			return errors.Join(err, firstErr)
		}
	}
	first := k.start(k.ctx, k.key("1"), handle(true))
	k.arrive(running, first)
	second := k.start(k.ctx, k.key("1"), handle(false))
	k.sleep(grace)
	select {
	case early := <-second: // busy, at best
		if early.err == nil || waybill.ClassOf(early.err) != waybill.ClassOutage {
			close(finish)
			k.fail("the second delivery ended with status %s and error %v while the first was running", early.status, early.err)
		}
		again := make(chan result, 1)
		again <- early
		second = again
	default:
	}
	close(finish)
	r := k.await("the first delivery", first)
	k.failIf(!errors.Is(r.err, firstErr) || firstErr == nil && r.status != core.InboxNew,
		"the first delivery ended with status %s and error %v", r.status, r.err)
	r = k.persist(second, k.key("1"), handle(false))
	k.failIf(r.err != nil || r.status != want, "the second delivery ended with status %s and error %v, want status %s", r.status, r.err, want)
	k.failIf(most > 1, "two handlers of one message ran at the same time")
	k.effects("after two deliveries", "e", 1)
}

// However many deliveries of one message come at once, and however often the handler fails first, there is one
// effect. IN-03, IN-01.
func stormHasOneEffect[Tx any](k *kit[Tx]) {
	const n = 12
	var mu sync.Mutex
	runs := 0
	flaky := func(ctx context.Context, tx Tx) error {
		if err := k.h.Effect(ctx, tx, k.name("e")); err != nil {
			return err
		}
		k.sleep(grace / 20) // so that all are there at once
		mu.Lock()
		defer mu.Unlock()
		if runs++; runs <= 3 {
			return errHandler
		}
		return nil
	}
	var all []<-chan result
	for range n {
		all = append(all, k.start(k.ctx, k.key("1"), flaky))
	}
	count := map[core.InboxStatus]int{}
	for _, done := range all {
		r := k.persist(done, k.key("1"), flaky)
		k.failIf(r.err != nil && !errors.Is(r.err, errHandler), "a delivery failed: %w", r.err)
		count[r.status]++
	}
	k.failIf(count[core.InboxNew] != 1 || count[core.InboxDuplicate] != n-4,
		"the first three of %d deliveries failed; %d were processed and %d were duplicates", n, count[core.InboxNew], count[core.InboxDuplicate])
	k.effects("after a storm", "e", 1)
}

// Different messages at the same time are all handled. IN-01.
func differentKeysAllRun[Tx any](k *kit[Tx]) {
	const n = 12
	var all []<-chan result
	for i := range n {
		all = append(all, k.start(k.ctx, k.key(strconv.Itoa(i)), k.effect("e")))
	}
	for i, done := range all {
		r := k.persist(done, k.key(strconv.Itoa(i)), k.effect("e"))
		k.failIf(r.err != nil || r.status != core.InboxNew, "one of %d different messages ended with status %s and error %v", n, r.status, r.err)
	}
	k.effects("after different messages", "e", n)
}

// A delivery that waits for another gives up when its context ends, at no harm to the other. IN-03.
func waitingHeedsItsContext[Tx any](k *kit[Tx]) {
	running, begin, finish := started()
	first := k.start(k.ctx, k.key("1"), func(ctx context.Context, tx Tx) error {
		begin()
		<-finish
		return k.h.Effect(ctx, tx, k.name("e"))
	})
	k.arrive(running, first)
	ctx, cancel := context.WithTimeout(k.ctx, grace)
	defer cancel()
	second := k.start(ctx, k.key("1"), k.never)
	var err error
	switch r, ended := suitetest.Come(second); {
	case !ended:
		err = fmt.Errorf("the second delivery goes on waiting %s after its context ended", suitetest.Patience)
	case r.err == nil:
		err = fmt.Errorf("the second delivery ended with status %s while the first was running", r.status)
	case waybill.ClassOf(r.err) == waybill.ClassPermanent || waybill.ClassOf(r.err) == waybill.ClassRejected:
		err = fmt.Errorf("giving up waiting counts against the message: %w", r.err)
	}
	close(finish)
	if r := k.await("the first delivery", first); err == nil && (r.err != nil || r.status != core.InboxNew) {
		err = fmt.Errorf("the first delivery ended with status %s and error %w", r.status, r.err)
	}
	k.failIf(err != nil, "%w", err)
	k.effects("after the first delivery", "e", 1)
}

// A handler that swallows the error of a failed statement has failed, if the database rolls back: it is never taken
// for handled. IN-01.
func swallowedFailureIsAFailure[Tx any](k *kit[Tx]) {
	b, ok := k.h.(Breaker[Tx])
	k.failIf(!ok, "%w: a harness that can make a statement fail", ErrNotDeclared)
	swallow := func(ctx context.Context, tx Tx) error {
		if err := k.h.Effect(ctx, tx, k.name("e")); err != nil {
			return err
		}
		if err := b.Break(ctx, tx); err == nil {
			return errors.New("the harness's broken statement succeeded")
		}
		return nil
	}
	_ = k.refused("a handler that swallowed a failed statement", k.key("1"), swallow)
	k.effects("after a swallowed failure", "e", 0)
	k.do("the message again", k.key("1"), core.InboxNew, k.effect("e"))
	k.effects("after a retry", "e", 1)
}
