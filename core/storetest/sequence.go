package storetest

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var sequenceChecks = []named{
	{"order-within-transaction", orderWithinTransaction},
	{"order-across-transactions", orderAcrossTransactions},
	{"late-commit-is-not-skipped", lateCommitIsNotSkipped},
	{"concurrent-commits-all-arrive", concurrentCommitsAllArrive},
}

// Messages of one transaction keep the order of their staging. OR-08.
func orderWithinTransaction(k *kit) {
	tx := k.begin()
	var ids []string
	for n := range 5 {
		ids = append(ids, stagedIDs(k.stageIn(tx, k.msgs(n+1)...))...)
	}
	k.commit(tx)
	k.takeIDs(ids)
}

// Messages of transactions that follow each other keep their order. OR-08.
func orderAcrossTransactions(k *kit) {
	var ids []string
	for range 10 {
		ids = append(ids, k.stage(k.msg(), k.msg())...)
	}
	k.takeIDs(ids)
}

// A transaction that staged first and commits last is found, though later ones were published already. OR-08.
func lateCommitIsNotSkipped(k *kit) {
	late := k.begin()
	lateIDs := stagedIDs(k.stageIn(late, k.msg(), k.msg(waybill.Key("key"))))
	ctx, cancel := context.WithTimeout(k.ctx, time.Second)
	defer cancel()
	early := []waybill.Message{k.msg(waybill.ID(waybill.NewID())), k.msg(waybill.ID(waybill.NewID()), waybill.Key("key"))}
	if err := k.tryStage(ctx, early...); err != nil {
		k.undeclared(fmt.Sprintf("transactions that stage at the same time (%v)", err))
	}
	k.drainIDs([]string{early[0].ID, early[1].ID})
	k.none("the late transaction has not committed")
	k.commit(late)
	k.drainIDs(lateIDs)
	k.none("everything was published")
}

// Concurrent transactions can commit in any order: a member that hands out meanwhile gets every message once. OR-08.
func concurrentCommitsAllArrive(k *kit) {
	const writers, rounds = 4, 10
	seen := map[string]bool{}
	suitetest.Parallel(writers+1, func(w int) {
		if w < writers {
			for i := range rounds {
				k.stageBusy(k.msg(waybill.ID(fmt.Sprintf("%d-%d", w, i))),
					k.msg(waybill.ID(fmt.Sprintf("%d-%dk", w, i)), waybill.Key(strconv.Itoa(i%3))))
			}
			return
		}
		for len(seen) < 2*writers*rounds {
			id := k.drain(1)[0].ID
			k.failIf(seen[id], "message %s was handed out again after it had been published", id)
			seen[id] = true
		}
	})
	k.none("everything was published")
}
