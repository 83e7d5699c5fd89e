package storetest

import "github.com/waybill-go/waybill"

// mustStage stages msgs in tx and does not check the ids.
func (k *kit) mustStage(tx Tx, msgs ...waybill.Message) []waybill.Staged {
	staged, err := tx.Stage(k.ctx, msgs...)
	k.must("stage", err)
	k.note(staged)
	n := 0
	for i := range msgs {
		n += max(len(msgs[i].Routes), 1)
	}
	k.failIf(len(staged) != n, "stage returned %d results for %d messages and routes", len(staged), n)
	return staged
}

func (k *kit) stageNow(msgs ...waybill.Message) []waybill.Staged {
	tx := k.begin()
	staged := k.mustStage(tx, msgs...)
	k.commit(tx)
	return staged
}

// conflict stages msgs, which must be refused since another source's message has the id or the dedupe key of one.
func (k *kit) conflict(what string, msgs ...waybill.Message) {
	tx := k.begin()
	_, err := tx.Stage(k.ctx, msgs...)
	k.failIf(waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonIDConflict,
		"%s: stage answered %v, want class %v and reason %q", what, err, waybill.ClassPermanent, waybill.ReasonIDConflict)
	k.rollback(tx)
}

// duplicate is the answer to a message that is a duplicate of id.
func (k *kit) duplicate(id string) waybill.Staged {
	return waybill.Staged{ID: id, Route: k.route, Duplicate: true}
}

func (k *kit) expect(where string, got, want waybill.Staged) {
	k.failIf(got != want, "%s: stage answered %+v, want %+v", where, got, want)
}

func (k *kit) cancelIn(tx Tx, keys ...waybill.CancelKey) []waybill.CancelStatus {
	c, ok := tx.(Canceller)
	if !ok {
		k.undeclared("cancelling")
	}
	got, err := c.Cancel(k.ctx, keys...)
	k.must("cancel", err)
	k.failIf(len(got) != len(keys), "cancel returned %d answers for %d keys", len(got), len(keys))
	return got
}

// cancel cancels in a transaction of its own, which must answer want.
func (k *kit) cancel(where string, want waybill.CancelStatus, key waybill.CancelKey) {
	tx := k.begin()
	got := k.cancelIn(tx, key)
	k.commit(tx)
	k.failIf(got[0] != want, "%s: cancel answered %v, want %q", where, got[0], want)
}

// canCancel ends the check if the harness cannot cancel.
func (k *kit) canCancel() {
	tx := k.raw()
	k.cancelIn(tx)
	k.rollback(tx)
}

func (k *kit) byID(id string) waybill.CancelKey { return waybill.CancelKey{Route: k.route, ID: id} }

func (k *kit) byKey(key string) waybill.CancelKey {
	return waybill.CancelKey{Route: k.route, Topic: k.topic, DedupeKey: key}
}
