package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// Transactor is a harness that can begin a transaction that is not the inbox's. Without it the suite does not know
// whether marks in the caller's own transaction work.
type Transactor[Tx any] interface {
	// Begin begins a transaction of the caller's own. End commits it, or else rolls it back; then Tx is over.
	Begin(ctx context.Context) (tx Tx, end func(ctx context.Context, commit bool) error, err error)
}

type batchHandler[Tx any] func(ctx context.Context, tx Tx, fresh []int) error

func (k *kit[Tx]) batcher() core.BatchInbox[Tx] {
	b, ok := core.As[core.BatchInbox[Tx]](k.box)
	k.failIf(!ok, "%w: core.BatchInbox", ErrNotDeclared)
	return b
}

func (k *kit[Tx]) keys(ids ...string) []core.InboxKey {
	all := make([]core.InboxKey, len(ids))
	for i, id := range ids {
		all[i] = k.key(id)
	}
	return all
}

// effectsOf writes one effect e-id for every fresh key.
func (k *kit[Tx]) effectsOf(keys []core.InboxKey) batchHandler[Tx] {
	return func(ctx context.Context, tx Tx, fresh []int) error {
		for _, i := range fresh {
			if err := k.h.Effect(ctx, tx, k.name("e-"+keys[i].ID)); err != nil {
				return err
			}
		}
		return nil
	}
}

// batch calls DoBatch and checks the statuses, and that fn saw exactly the new keys, in order.
func (k *kit[Tx]) batch(when string, keys []core.InboxKey, want ...core.InboxStatus) {
	var fresh []int
	for i, st := range want {
		if st == core.InboxNew {
			fresh = append(fresh, i)
		}
	}
	var saw [][]int
	got, err := k.batcher().DoBatch(k.ctx, keys, func(ctx context.Context, tx Tx, f []int) error {
		saw = append(saw, slices.Clone(f))
		return k.effectsOf(keys)(ctx, tx, f)
	})
	k.failIf(err != nil || !slices.Equal(got, want), "%s: got statuses %v and error %v, want %v", when, got, err, want)
	k.failIf(fresh == nil && saw != nil || fresh != nil &&
		(len(saw) == 0 || slices.ContainsFunc(saw, func(f []int) bool { return !slices.Equal(f, fresh) })),
		"%s: the handler was given the keys %v, want %v", when, saw, fresh)
}

// persistBatch repeats DoBatch while it ends with an outage, as a consumer would: a store that cannot wait is busy.
func (k *kit[Tx]) persistBatch(keys []core.InboxKey) ([]core.InboxStatus, error) {
	return suitetest.Call(func() ([]core.InboxStatus, error) {
		for w := (suitetest.Wait{}); ; {
			got, err := k.batcher().DoBatch(k.ctx, keys, k.effectsOf(keys))
			k.failIf(err == nil && len(got) != len(keys), "DoBatch returned %d statuses for %d keys", len(got), len(keys))
			if waybill.ClassOf(err) != waybill.ClassOutage || !w.Again(k.ctx) {
				return got, err
			}
		}
	})
}

const (
	isNew = core.InboxNew
	isDup = core.InboxDuplicate
)

// A batch marks all its keys and commits them with the handler's writes; from then on they are duplicates. IN-08.
func batchCommitsTogether[Tx any](k *kit[Tx]) {
	keys := k.keys("3", "1", "2")
	k.batch("a new batch", keys, isNew, isNew, isNew)
	for _, id := range []string{"1", "2", "3"} {
		k.effects("after a batch", "e-"+id, 1)
		k.do("a key of the batch", k.key(id), isDup, k.never)
	}
	k.batch("the same batch", keys, isDup, isDup, isDup)
	k.effects("after the same batch", "e-1", 1)
}

// The handler of a batch gets the new keys only; a key that stands twice is new once. IN-08.
func batchSkipsDuplicates[Tx any](k *kit[Tx]) {
	k.do("a message", k.key("b"), isNew, k.effect("e-b"))
	k.batch("a batch with duplicates", k.keys("c", "b", "a", "c", "d", "a"), isNew, isDup, isNew, isDup, isNew, isDup)
	for _, id := range []string{"a", "b", "c", "d"} {
		k.effects("after a batch with duplicates", "e-"+id, 1)
	}
	other := k.key("x")
	other.Source = "/other"
	k.batch("keys that differ in the source", []core.InboxKey{k.key("x"), other}, isNew, isNew)
	got, err := k.batcher().DoBatch(k.ctx, nil, nil)
	k.failIf(err != nil || len(got) != 0, "an empty batch: got %v and error %v", got, err)
}

// All keys of a large batch are marked. The docs promise 100,000. IN-08.
func batchOfThousands[Tx any](k *kit[Tx]) {
	const n = 2000
	b := k.batcher()
	keys := make([]core.InboxKey, n)
	for i := range keys {
		keys[i] = k.key(strconv.Itoa(i))
	}
	for _, want := range []core.InboxStatus{isNew, isDup} {
		runs := 0
		got, err := b.DoBatch(k.ctx, keys, func(ctx context.Context, tx Tx, fresh []int) error {
			if runs++; len(fresh) != n {
				return fmt.Errorf("the handler was given %d of %d keys", len(fresh), n)
			}
			return k.h.Effect(ctx, tx, k.name("e"))
		})
		k.failIf(err != nil || len(got) != n || slices.ContainsFunc(got, func(st core.InboxStatus) bool { return st != want }),
			"a batch of %d keys: %d statuses, not all of them %s, and error %v", n, len(got), want, err)
		k.failIf(want == isDup && runs > 0, "a batch of %d duplicates ran the handler", n)
	}
	k.effects("after a large batch and its duplicate", "e", 1)
	twice, want := make([]core.InboxKey, n), make([]core.InboxStatus, n)
	for i := range twice {
		twice[i], want[i] = k.key("t"+strconv.Itoa(i%(n/2))), isDup
		if i < n/2 {
			want[i] = isNew
		}
	}
	got, err := b.DoBatch(k.ctx, twice, func(context.Context, Tx, []int) error { return nil })
	k.failIf(err != nil || !slices.Equal(got, want),
		"a batch of %d keys that come twice: the first half is not new, or the second no duplicate, or error %v", n/2, err)
	k.do("the last key of the batch", keys[n-1], isDup, k.never)
}

// A batch that fails or panics leaves neither an effect nor a mark, and its error comes out. IN-08, IN-04.
func batchFailureLeavesNothing[Tx any](k *kit[Tx]) {
	keys := k.keys("1", "2", "3")
	got, err := k.batcher().DoBatch(k.ctx, keys, func(ctx context.Context, tx Tx, fresh []int) error {
		if err := k.effectsOf(keys)(ctx, tx, fresh); err != nil {
			return err
		}
		return waybill.Reject(errHandler)
	})
	k.failIf(!errors.Is(err, errHandler) || waybill.ClassOf(err) != waybill.ClassPermanent || len(got) != 0,
		"a failing batch: got %v and error %w", got, err)
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(errHandler) {
				panic(p)
			}
		}()
		_, err := k.batcher().DoBatch(k.ctx, keys, func(ctx context.Context, tx Tx, fresh []int) error {
			_ = k.effectsOf(keys)(ctx, tx, fresh)
			panic(errHandler)
		})
		k.failIf(err == nil, "DoBatch returned no error for a handler that panicked")
	}()
	bad := append(k.keys("1", "2"), core.InboxKey{Consumer: k.consumer, ID: "1"})
	_, err = k.batcher().DoBatch(k.ctx, bad, k.effectsOf(bad))
	k.failIf(!errors.Is(err, waybill.ErrInvalid), "a batch with a bad key: got %w, want waybill.ErrInvalid", err)
	for _, id := range []string{"1", "2", "3"} {
		k.effects("after a batch that failed", "e-"+id, 0)
	}
	k.do("a key of the batch", k.key("2"), isNew, k.effect("e-2"))
	k.batch("the batch again", keys, isNew, isDup, isNew)
}

// A batch waits for a delivery that has marked one of its keys, and finds a duplicate or, if that one failed, a new
// key. IN-08, IN-03.
func batchWaitsForOthers[Tx any](k *kit[Tx]) {
	k.batcher()
	for i, firstErr := range []error{nil, errHandler} {
		id := func(n string) string { return fmt.Sprint(i, "-", n) }
		keys := k.keys(id("1"), id("2"), id("3"))
		running, begin, finish := started()
		first := k.start(k.ctx, keys[1], func(ctx context.Context, tx Tx) error {
			err := k.h.Effect(ctx, tx, k.name("e-"+keys[1].ID))
			begin()
			<-finish
			return errors.Join(err, firstErr)
		})
		k.arrive(running, first)
		second := make(chan error, 1)
		var got []core.InboxStatus
		go func() {
			var err error
			got, err = k.persistBatch(keys)
			second <- err
		}()
		k.sleep(grace)
		early := false
		select {
		case err := <-second:
			early = true
			second <- err
		default:
		}
		close(finish)
		k.failIf(early, "a batch did not wait for a delivery that has one of its keys")
		k.await("the first delivery", first)
		want := []core.InboxStatus{isNew, isDup, isNew}
		if firstErr != nil {
			want[1] = isNew
		}
		err := <-second
		k.failIf(err != nil || !slices.Equal(got, want), "the batch ended with %v and error %v, want %v", got, err, want)
		for _, key := range keys {
			k.effects("after both", "e-"+key.ID, 1)
		}
	}
}

// Batches that overlap in any order at the same time all end, and every key has one effect. IN-08.
func batchesDoNotDeadlock[Tx any](k *kit[Tx]) {
	k.batcher()
	const batches, size = 8, 20
	var mu sync.Mutex
	processed := map[string]int{}
	errs := make(chan error, batches)
	for n := range batches {
		keys := make([]core.InboxKey, size)
		for i := range keys {
			keys[i] = k.key(strconv.Itoa((i*7 + n*3) % size))
			if n%2 == 1 {
				keys[i] = k.key(strconv.Itoa((size - 1 - i) % size))
			}
		}
		go func() {
			got, err := k.persistBatch(keys)
			mu.Lock()
			for i, st := range got {
				if st == isNew {
					processed[keys[i].ID]++
				}
			}
			mu.Unlock()
			errs <- err
		}()
	}
	for range batches {
		err := <-errs
		k.failIf(err != nil, "a batch that overlaps others failed: %w", err)
	}
	for i := range size {
		id := strconv.Itoa(i)
		k.failIf(processed[id] != 1, "key %s was processed %d times", id, processed[id])
		k.effects("after overlapping batches", "e-"+id, 1)
	}
}

func (k *kit[Tx]) marker() (core.Marker[Tx], Transactor[Tx]) {
	m, ok := core.As[core.Marker[Tx]](k.box)
	k.failIf(!ok, "%w: core.Marker", ErrNotDeclared)
	t, ok := k.h.(Transactor[Tx])
	k.failIf(!ok, "%w: a harness that can begin a transaction", ErrNotDeclared)
	return m, t
}

// mine marks key in a transaction of the caller's own, writes the effect if the mark is new, and ends the transaction.
func (k *kit[Tx]) mine(when string, key core.InboxKey, want core.InboxStatus, commit bool) {
	m, t := k.marker()
	tx, end, err := t.Begin(k.ctx)
	k.failIf(err != nil, "begin: %w", err)
	got, err := m.Mark(k.ctx, tx, key)
	if err == nil && got == isNew {
		err = k.h.Effect(k.ctx, tx, k.name("e"))
	}
	if errEnd := end(k.ctx, commit && err == nil); err == nil {
		err = errEnd
	}
	k.failIf(err != nil || got != want, "%s: got status %s and error %v, want status %s", when, got, err, want)
}

// A mark in the caller's own transaction is committed or rolled back with it, and is one with those of Do. IN-09.
func markInOwnTransaction[Tx any](k *kit[Tx]) {
	k.mine("a mark that is rolled back", k.key("1"), isNew, false)
	k.effects("after a rollback", "e", 0)
	k.mine("a new mark", k.key("1"), isNew, true)
	k.mine("the same mark", k.key("1"), isDup, true)
	k.do("a message that was marked", k.key("1"), isDup, k.never)
	k.do("another message", k.key("2"), isNew, k.effect("e"))
	k.mine("a message that was handled", k.key("2"), isDup, true)
	k.effects("after all", "e", 2)
	m, t := k.marker()
	tx, end, err := t.Begin(k.ctx)
	k.failIf(err != nil, "begin: %w", err)
	for what, key := range k.badKeys() {
		if _, err := m.Mark(k.ctx, tx, key); !errors.Is(err, waybill.ErrInvalid) {
			_ = end(k.ctx, false)
			k.fail("mark a key that has %s: got %w, want waybill.ErrInvalid", what, err)
		}
	}
	first, err1 := m.Mark(k.ctx, tx, k.key("3"))
	second, err2 := m.Mark(k.ctx, tx, k.key("3"))
	err = errors.Join(err1, err2, end(k.ctx, true))
	k.failIf(err != nil || first != isNew || second != isDup,
		"two marks of one key in one transaction: got %s, then %s, and error %v", first, second, err)
	_, err = m.Mark(k.ctx, tx, k.key("4"))
	k.failIf(err == nil, "a mark in a transaction that has ended succeeded")
	k.do("a key that was marked after the end", k.key("4"), isNew, k.effect("e"))
}

// Old marks are deleted, as many as was asked for at a time, those of one consumer only; young ones stay. IN-05.
func purgeDeletesOldMarks[Tx any](k *kit[Tx]) {
	p, ok := core.As[core.InboxPurger](k.box)
	k.failIf(!ok, "%w: core.InboxPurger", ErrNotDeclared)
	purge := func(when string, age time.Duration, limit, want int) {
		got, err := p.PurgeInbox(k.ctx, k.consumer, age, limit)
		k.failIf(err != nil || got != want, "%s: %d marks were deleted, want %d; error %v", when, got, want, err)
	}
	other := core.InboxKey{Consumer: k.consumer + "x", Source: "/inboxtest", ID: "1"}
	k.do("a message of another consumer", other, isNew, k.effect("e"))
	for i := range 5 {
		k.do("a message", k.key(strconv.Itoa(i)), isNew, k.effect("e"))
	}
	purge("young marks", time.Hour, 10, 0)
	k.sleep(grace)
	purge("old marks", grace/2, 2, 2)
	purge("more old marks", grace/2, 2, 2)
	purge("the rest", grace/2, 2, 1)
	purge("nothing", grace/2, 2, 0)
	k.do("another consumer's message again", other, isDup, k.never)
	k.do("a message that was forgotten", k.key("0"), isNew, k.effect("e"))
	purge("a young mark", time.Hour, 10, 0)
	for _, bad := range []struct {
		age   time.Duration
		limit int
	}{{0, 1}, {-time.Hour, 1}, {time.Hour, 0}, {time.Hour, -1}} {
		n, err := p.PurgeInbox(k.ctx, k.consumer, bad.age, bad.limit)
		k.failIf(!errors.Is(err, waybill.ErrInvalid) || n != 0,
			"purge with age %s and limit %d: %d deleted, error %w; want waybill.ErrInvalid", bad.age, bad.limit, n, err)
	}
	k.do("a message of now", k.key("0"), isDup, k.never)
}
