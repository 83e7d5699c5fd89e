package inboxtest

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Two messages can have one id: by a mistake, or since who may publish one topic wants to suppress a message of
// another. A mark tells them apart by the hash that it keeps.

const isConflict = core.InboxConflict

// hashed returns key with the hash that begins with b; 0 stands for none.
func hashed(key core.InboxKey, b byte) core.InboxKey {
	if b != 0 {
		key.ContentHash = string([]byte{b, 0, 0xff, '\'', '\\', 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, b}) // binary
	}
	return key
}

// A message with the id of another one that was handled is a conflict, not a duplicate, and its handler does not run.
// Without a hash on either side the two cannot be compared: the message is a duplicate. IN-01.
func otherContentIsAConflict[Tx any](k *kit[Tx]) {
	key := k.key("1")
	k.do("a new message", hashed(key, 1), isNew, k.effect("e"))
	k.do("the same message", hashed(key, 1), isDup, k.never)
	k.do("another message with its id", hashed(key, 2), isConflict, k.never)
	k.do("the same message after that", hashed(key, 1), isDup, k.never)
	k.do("a message of unknown content", key, isDup, k.never)
	key = k.key("2")
	k.do("a new message of unknown content", key, isNew, k.effect("e"))
	k.do("a message with its id", hashed(key, 1), isDup, k.never)
	k.do("another one", hashed(key, 2), isDup, k.never)
	k.effects("after all", "e", 2)
}

// A message that waits for another one with its id is a conflict when that one is handled, and runs when that one
// failed. IN-03.
func concurrentContentIsAConflict[Tx any](k *kit[Tx]) {
	for id, c := range map[string]struct {
		err  error
		want core.InboxStatus
	}{"1": {nil, isConflict}, "2": {errHandler, isNew}} {
		running, begin, finish := started()
		first := k.start(k.ctx, hashed(k.key(id), 1), func(context.Context, Tx) error {
			begin()
			<-finish
			return c.err
		})
		k.arrive(running, first)
		other := hashed(k.key(id), 2)
		second := k.start(k.ctx, other, k.effect("e-"+id))
		k.sleep(grace)
		close(finish)
		k.await("the first message", first)
		r := k.persist(second, other, k.effect("e-"+id))
		k.failIf(r.err != nil || r.status != c.want,
			"another message with the id of one that ended with %v: got status %s and error %v, want status %s", c.err, r.status, r.err, c.want)
	}
	k.effects("of the message that was handled", "e-1", 0)
	k.effects("of the message that failed", "e-2", 1)
}

// A batch tells conflicts with earlier messages, and within itself. IN-08.
func batchTellsConflicts[Tx any](k *kit[Tx]) {
	k.do("a message", hashed(k.key("b"), 1), isNew, k.effect("e-b"))
	k.do("another message", hashed(k.key("c"), 1), isNew, k.effect("e-c"))
	keys := k.keys("a", "b", "c", "a", "d", "a")
	for i, b := range []byte{1, 2, 1, 2, 0, 1} {
		keys[i] = hashed(keys[i], b)
	}
	k.batch("a batch with conflicts", keys, isNew, isConflict, isDup, isConflict, isNew, isDup)
	k.batch("only conflicts", []core.InboxKey{hashed(k.key("a"), 3), hashed(k.key("b"), 3)}, isConflict, isConflict)
	for _, id := range []string{"a", "b", "c", "d"} {
		k.effects("after a batch with conflicts", "e-"+id, 1)
	}
}

// A mark in the caller's own transaction tells conflicts, also with one of the same transaction, and keeps its hash.
// IN-09.
func markTellsConflicts[Tx any](k *kit[Tx]) {
	k.mine("a new mark", hashed(k.key("1"), 1), isNew, true)
	k.mine("the same mark", hashed(k.key("1"), 1), isDup, true)
	k.mine("another one with its id", hashed(k.key("1"), 2), isConflict, true)
	k.do("a message with its id", hashed(k.key("1"), 2), isConflict, k.never)
	m, t := k.marker()
	tx, end, err := t.Begin(k.ctx)
	k.failIf(err != nil, "begin: %w", err)
	first, err1 := m.Mark(k.ctx, tx, hashed(k.key("2"), 1))
	second, err2 := m.Mark(k.ctx, tx, hashed(k.key("2"), 2))
	err = errors.Join(err1, err2, end(k.ctx, true))
	k.failIf(err != nil || first != isNew || second != isConflict,
		"two marks of one id in one transaction: got %s, then %s, and error %v", first, second, err)
}

// A key that is done for one content is a conflict for another. IN-07.
func doneForAnotherContent(k *markKit) {
	key := k.key
	k.key = hashed(key, 1)
	k.begin("first", "a", time.Hour, claimed)
	k.key = hashed(key, 2)
	k.begin("another message while it runs", "b", time.Hour, busy)
	k.key = hashed(key, 1)
	k.must("finish", k.store.FinishMark(k.ctx, k.key, time.Hour))
	k.begin("the same message", "c", time.Hour, done)
	k.key = hashed(key, 2)
	k.begin("another message with its id", "d", time.Hour, conflict)
	k.key = key
	k.begin("a message of unknown content", "e", time.Hour, done)
}
