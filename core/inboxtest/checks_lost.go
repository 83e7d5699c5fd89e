package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Clock is a harness whose inbox counts ages by a clock that the harness moves. Without it the suite does not know
// whether marks last.
type Clock interface {
	// Sleep moves the clock by d and need not wait.
	Sleep(ctx context.Context, d time.Duration) error
}

// Disposable is a harness of an inbox in which there are no marks but the suite's. Without it the suite does not purge
// the marks of all consumers.
type Disposable interface {
	Disposable() bool
}

// An outage is the failure after which the message is certain to come again, so it leaves neither effect nor mark. Nor
// does a handler that ran out of time. The same holds for a batch. IN-04.
func outageLeavesNoMark[Tx any](k *kit[Tx]) {
	outage := &waybill.Error{Op: "inboxtest: call a service", Class: waybill.ClassOutage, Err: errHandler}
	for i, fail := range []error{outage, fmt.Errorf("wrapped: %w", outage), errHandler, context.DeadlineExceeded, context.Canceled} {
		id := fmt.Sprint("message ", i)
		err := k.refused("a handler that failed with "+fail.Error(), k.key(id), func(ctx context.Context, tx Tx) error {
			if err := k.h.Effect(ctx, tx, k.name(id)); err != nil {
				return err
			}
			return fail
		})
		k.failIf(!errors.Is(err, fail), "the handler's error came out as %w, want %w", err, fail)
		k.effects("after a failing handler", id, 0)
		k.do("the message again, after the handler failed with "+fail.Error(), k.key(id), isNew, k.effect(id))
		k.effects("after a retry", id, 1)
	}
	b, ok := core.As[core.BatchInbox[Tx]](k.box)
	if !ok {
		return
	}
	keys := k.keys("b1", "b2")
	_, err := b.DoBatch(k.ctx, keys, func(context.Context, Tx, []int) error { return outage })
	k.failIf(!errors.Is(err, errHandler), "the error of a batch came out as %w, want %w", err, outage)
	k.batch("the batch again, after an outage", keys, isNew, isNew)
}

// The writes of a handler after its transaction is lost are not committed either: a database that goes on without a
// transaction would keep that half of the effects, and the message comes again. IN-01, IN-02.
func lostTransactionHasNoEffect[Tx any](k *kit[Tx]) {
	b, ok := k.h.(Breaker[Tx])
	k.failIf(!ok, "%w: a harness that can make a statement fail", ErrNotDeclared)
	_ = k.refused("a handler that went on after a failed statement", k.key("1"), func(ctx context.Context, tx Tx) error {
		if err := k.h.Effect(ctx, tx, k.name("before")); err != nil {
			return err
		}
		if err := b.Break(ctx, tx); err == nil {
			return errors.New("the harness's broken statement succeeded")
		}
		for range 3 {
			_ = k.h.Effect(ctx, tx, k.name("after")) // a handler may ignore this too
		}
		return nil
	})
	k.effects("written before the transaction was lost", "before", 0)
	k.effects("written after the transaction was lost", "after", 0)
	k.do("the message again", k.key("1"), isNew, k.effect("after"))
	k.effects("after a retry", "after", 1)
}

// own is the key of a value in a context.
type own struct{}

// The handler's context has the values of the caller's: the delivery, its trace, its tenant. CO-16.
func handlerContextHasItsValues[Tx any](k *kit[Tx]) {
	ctx := context.WithValue(waybill.WithScope(k.ctx, waybill.Scope{CorrelationID: "corr", Tenant: "tenant"}), own{}, "mine")
	look := func(ctx context.Context) error {
		if s := waybill.ScopeFrom(ctx); ctx.Value(own{}) != "mine" || s.CorrelationID != "corr" || s.Tenant != "tenant" {
			return fmt.Errorf("the handler's context has the value %v and the scope %+v; the caller's had others", ctx.Value(own{}), s)
		}
		return nil
	}
	status, err := k.box.Do(ctx, k.key("1"), func(ctx context.Context, _ Tx) error { return look(ctx) })
	k.failIf(err != nil || status != isNew, "Do answered %s: %w", status, err)
	if b, ok := core.As[core.BatchInbox[Tx]](k.box); ok {
		ran := false
		_, err := b.DoBatch(ctx, k.keys("2"), func(ctx context.Context, _ Tx, _ []int) error {
			ran = true
			return look(ctx)
		})
		k.failIf(err != nil || !ran, "a batch of one new message: the handler ran: %v; %w", ran, err)
	}
}

// badKeys are keys that every method refuses, by their fault.
func (k *kit[Tx]) badKeys() map[string]core.InboxKey {
	long := strings.Repeat("x", waybill.MaxNameBytes+1)
	return map[string]core.InboxKey{
		"no consumer":     {Source: "/a", ID: "1"},
		"no source":       {Consumer: k.consumer, ID: "1"},
		"no id":           {Consumer: k.consumer, Source: "/a"},
		"a long id":       {Consumer: k.consumer, Source: "/a", ID: long},
		"a long source":   {Consumer: k.consumer, Source: long, ID: "1"},
		"a long consumer": {Consumer: long, Source: "/a", ID: "1"},
		"NUL in its id":   {Consumer: k.consumer, Source: "/a", ID: "a\x00"},
		"no UTF-8":        {Consumer: k.consumer, Source: "/a", ID: "a\xff"},
	}
}

// A batch with one bad key is refused before anything happens, for every fault of the key. IN-01, IN-08.
func batchRefusesBadKeys[Tx any](k *kit[Tx]) {
	b := k.batcher()
	for what, key := range k.badKeys() {
		keys := append(k.keys("1", "2"), key)
		got, err := b.DoBatch(k.ctx, keys, func(context.Context, Tx, []int) error { return nil })
		k.failIf(!errors.Is(err, waybill.ErrInvalid) || len(got) != 0,
			"a batch with a key that has %s: got %v and %w, want waybill.ErrInvalid", what, got, err)
	}
	k.batch("the good keys", k.keys("1", "2"), isNew, isNew)
}

// A mark stays until it is purged. IN-05.
func markLasts[Tx any](k *kit[Tx]) {
	c, ok := core.As[Clock](k.h)
	k.failIf(!ok, "%w: a harness that can move the clock", ErrNotDeclared)
	k.do("a new message", k.key("1"), isNew, k.effect("e"))
	for _, d := range []time.Duration{2 * time.Minute, 2 * time.Hour, 48 * time.Hour, 90 * 24 * time.Hour} {
		err := c.Sleep(k.ctx, d)
		k.failIf(err != nil, "sleep: %w", err)
		k.do(fmt.Sprintf("the same message, %s later", d), k.key("1"), isDup, k.never)
	}
}

// A mark that is younger than asked for stays, however close it is. IN-05.
func purgeKeepsYoungMarks[Tx any](k *kit[Tx]) {
	p, ok := core.As[core.InboxPurger](k.box)
	k.failIf(!ok, "%w: core.InboxPurger", ErrNotDeclared)
	const age = 8 * grace
	for try := range 5 {
		key := k.key(strconv.Itoa(try))
		start := time.Now()
		k.do("a new message", key, isNew, k.effect("e"))
		k.sleep(age * 5 / 8)
		n, err := p.PurgeInbox(k.ctx, k.consumer, age, 10)
		k.failIf(err != nil || n < 0 || n > 1+try, "a purge of %d marks at most deleted %d: %w", 1+try, n, err)
		if time.Since(start) >= age {
			continue // the machine is slow: the mark may be old enough
		}
		k.do("a message that was younger than what was purged", key, isDup, k.never)
		return
	}
	k.fail("%w: a machine on which a purge takes less than %s", ErrNotDeclared, age*3/8)
}

// A purge without a consumer deletes the old marks of all. IN-05.
func purgeOfAllConsumers[Tx any](k *kit[Tx]) {
	p, ok := core.As[core.InboxPurger](k.box)
	d, may := core.As[Disposable](k.h)
	k.failIf(!ok || !may || !d.Disposable(), "%w: an inbox with core.InboxPurger whose marks may all be deleted", ErrNotDeclared)
	var keys []core.InboxKey
	for _, consumer := range []string{"a", "b", "c"} {
		keys = append(keys, core.InboxKey{Consumer: k.consumer + consumer, Source: "/inboxtest", ID: "1"})
	}
	for _, key := range keys {
		k.do("a new message", key, isNew, k.effect("e"))
	}
	k.sleep(grace)
	n, err := p.PurgeInbox(k.ctx, "", grace/2, core.MaxInboxKeys)
	k.failIf(err != nil || n < len(keys), "a purge of all consumers deleted %d marks, want at least %d: %w", n, len(keys), err)
	slices.Reverse(keys)
	for _, key := range keys {
		k.do("a message that was forgotten", key, isNew, k.effect("e"))
	}
}
