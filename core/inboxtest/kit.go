package inboxtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sleep"
)

const grace = 100 * time.Millisecond // for a second transaction to meet the first

var errHandler = errors.New("the handler failed")

// kit is what a check works with. Its methods give up the check when something fails.
type kit[Tx any] struct {
	base
	h        Harness[Tx]
	box      core.Inbox[Tx]
	consumer string
}

type handler[Tx any] func(ctx context.Context, tx Tx) error

// base is what the checks of inboxes and those of marks have in common.
type base struct {
	ctx context.Context //nolint:containedctx // it lives as long as one check
}

func (base) fail(format string, a ...any) { suitetest.Failf(format, a...) }

// failIf is fail if the condition holds.
func (base) failIf(is bool, format string, a ...any) {
	if is {
		suitetest.Failf(format, a...)
	}
}

func (b base) must(what string, err error) { b.failIf(err != nil, "%s: %w", what, err) }

func (b base) sleep(d time.Duration) { b.must("the check ran out of time", sleep.For(b.ctx, d)) }

func (k *kit[Tx]) key(id string) core.InboxKey {
	return core.InboxKey{Consumer: k.consumer, Source: "/inboxtest", ID: id}
}

// name makes an effect's name unlike that of any other check.
func (k *kit[Tx]) name(effect string) string { return k.consumer + "/" + effect }

func (k *kit[Tx]) effect(name string) handler[Tx] {
	return func(ctx context.Context, tx Tx) error { return k.h.Effect(ctx, tx, k.name(name)) }
}

// do calls Do and checks status and success.
func (k *kit[Tx]) do(when string, key core.InboxKey, want core.InboxStatus, fn handler[Tx]) {
	got, err := k.box.Do(k.ctx, key, fn)
	k.failIf(err != nil || got != want, "%s: got status %s and error %v, want status %s", when, got, err, want)
}

// refused calls Do and checks that it failed.
func (k *kit[Tx]) refused(when string, key core.InboxKey, fn handler[Tx]) error {
	got, err := k.box.Do(k.ctx, key, fn)
	k.failIf(err == nil || got != core.InboxNone, "%s: got status %s and error %v, want an error", when, got, err)
	return err
}

// effects checks the number of committed effects.
func (k *kit[Tx]) effects(when, name string, want int) {
	got, err := k.h.Effects(k.ctx, k.name(name))
	k.failIf(err != nil, "count effects: %w", err)
	k.failIf(got != want, "%s: %d effects are committed, want %d", when, got, want)
}

// never is a handler that must not run.
func (k *kit[Tx]) never(context.Context, Tx) error {
	return errors.New("the handler ran, and should not have")
}

type result struct {
	status core.InboxStatus
	err    error
}

// start calls Do in a goroutine.
func (k *kit[Tx]) start(ctx context.Context, key core.InboxKey, fn handler[Tx]) <-chan result {
	done := make(chan result, 1)
	go func() {
		status, err := suitetest.Call(func() (core.InboxStatus, error) { return k.box.Do(ctx, key, fn) })
		done <- result{status, err}
	}()
	return done
}

func (k *kit[Tx]) await(what string, done <-chan result) result {
	r, ended := suitetest.Come(done)
	k.failIf(!ended, "%s did not end within %s", what, suitetest.Patience)
	return r
}

// started returns a channel that begin closes. An inbox can run a handler again, so begin can be called again. The
// handler waits until the check closes finish.
func started() (running <-chan struct{}, begin func(), finish chan struct{}) {
	c := make(chan struct{})
	return c, sync.OnceFunc(func() { close(c) }), make(chan struct{})
}

// arrive waits until the handler of the call that ends with first has begun, which closes running.
func (k *kit[Tx]) arrive(running <-chan struct{}, first <-chan result) {
	t := time.NewTimer(patience.For(suitetest.Patience))
	defer t.Stop()
	select {
	case <-running:
	case r := <-first:
		k.fail("a new message ended with status %s and error %v before its handler ran", r.status, r.err)
	case <-t.C:
		k.fail("the handler of a new message did not begin within %s", suitetest.Patience)
	}
}

// persist repeats Do while it ends with an outage, as a consumer would: a store that cannot wait is busy.
func (k *kit[Tx]) persist(done <-chan result, key core.InboxKey, fn handler[Tx]) result {
	r := k.await("Do", done)
	for w := (suitetest.Wait{}); waybill.ClassOf(r.err) == waybill.ClassOutage && w.Again(k.ctx); {
		r = k.await("Do", k.start(k.ctx, key, fn))
	}
	return r
}
