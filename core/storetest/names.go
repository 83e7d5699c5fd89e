package storetest

import (
	"fmt"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var nameChecks = []named{
	{"ids-are-compared-exactly", idsAreComparedExactly},
	{"keys-are-compared-exactly", keysAreComparedExactly},
	{"dedupe-keys-are-compared-exactly", dedupeKeysAreComparedExactly},
	{"filters-compare-exactly", filtersCompareExactly},
}

// twins are names that a database can take for one: by case, space at the end, accents, and ways to write one letter.
var twins = []string{"name", "Name", "NAME", "name ", " name", "namé", "name\u0301", "ｎame"}

// topicOf returns a topic for one of twins: topics hold no spaces.
func topicOf(s string) string { return "storetest." + strings.ReplaceAll(s, " ", "_") }

// Two messages whose ids, routes or topics differ in case, space or accents only are two messages: none is a duplicate,
// and none is lost. ST-05 ST-12.
func idsAreComparedExactly(k *kit) {
	own := waybill.NewID()
	var msgs []waybill.Message
	for _, s := range twins {
		msgs = append(msgs, k.msg(waybill.ID(own+s), onTopic(topicOf(s))))
	}
	ids := stagedIDs(k.fresh("an id", msgs...))
	for i, r := range k.takeIDs(ids) {
		k.failIf(r.Envelope.Topic != msgs[i].Topic, "message %q was handed out with the topic %q, want %q", r.ID, r.Envelope.Topic, msgs[i].Topic)
	}
	id := own + "routes"
	for _, s := range twins {
		o := k.other(k.h)
		o.route = k.route + s
		o.driver.own(o)
		o.fresh("a route", o.msg(waybill.ID(id)))
		o.drainIDs([]string{id})
		o.none("it is another route's")
	}
	if in, ok := core.As[admin.Inspector](k.store); ok {
		for _, id := range []string{own + "nAmE", own + "name  "} {
			_, err := in.Inspect(k.ctx, k.route, id)
			k.answers(fmt.Sprintf("inspect of id %q, which was not staged", id), waybill.ErrNotFound, err)
		}
	}
}

// fresh stages msgs, none of which may be a duplicate.
func (k *kit) fresh(of string, msgs ...waybill.Message) []waybill.Staged {
	staged := k.stageNow(msgs...)
	for i, s := range staged {
		k.failIf(s.Duplicate, "%s is not new: message %d of %d is a duplicate: %+v", of, i, len(staged), s)
	}
	return staged
}

// Keys that differ in case, space or accents only are different keys: a message of one never waits for one of another.
// OR-02.
func keysAreComparedExactly(k *kit) {
	var all []waybill.Message
	for _, s := range twins {
		all = append(all, k.msg(waybill.Key(s)))
	}
	ids := k.stage(all...)
	rs := k.takeIDs(ids) // all at once
	k.retry(rs[0], far)
	k.published(rs[1:]...)
	for i, s := range twins[1:] {
		if id := k.stage(k.msg(waybill.Key(s))); len(k.try(1)) != 1 {
			k.fail("the message %s with the key %q waits for a retry of the key %q", id, twins[i+1], twins[0])
		}
	}
	k.stage(k.msg(waybill.Key(twins[0])))
	k.none("its key waits for a retry")
	kk, ok := core.As[admin.BlockedKeys](k.store)
	if !ok {
		return
	}
	for _, s := range twins[1:] {
		err := kk.DecideHead(k.ctx, k.route, s, ids[0], admin.HeadSkip)
		k.answers(fmt.Sprintf("a decision about the head of key %q that named the head of key %q", s, twins[0]), waybill.ErrNotFound, err)
	}
}

// Dedupe keys, and their topics, that differ in case, space or accents only are different ones. ST-08 ST-09.
func dedupeKeysAreComparedExactly(k *kit) {
	k.canCancel()
	var msgs []waybill.Message
	for _, s := range twins {
		msgs = append(msgs, k.msg(waybill.DedupeKey(s), waybill.Delay(far)), k.msg(waybill.DedupeKey("same"), waybill.Delay(far), onTopic(topicOf(s))))
	}
	k.fresh("a dedupe key or its topic", msgs...)
	k.cancel("by a dedupe key that was not staged", waybill.CancelNotFound, k.byKey("nAmE"))
	k.cancel("by a dedupe key of another topic", waybill.CancelNotFound,
		waybill.CancelKey{Route: k.route, Topic: "storetest.nAmE", DedupeKey: "same"})
	k.cancel("by an id that was not staged", waybill.CancelNotFound, k.byID(msgs[0].ID+" "))
	for i, s := range twins {
		k.cancel(fmt.Sprintf("by the dedupe key %q", s), waybill.CancelDone, k.byKey(s))
		k.cancel(fmt.Sprintf("by the topic %q", msgs[2*i+1].Topic), waybill.CancelDone,
			waybill.CancelKey{Route: k.route, Topic: msgs[2*i+1].Topic, DedupeKey: "same"})
	}
}

// A filter selects by the whole name: an operator who purges a tenant's records purges no other tenant's. DB-11 DB-12.
func filtersCompareExactly(k *kit) {
	k.inspector()
	var msgs []waybill.Message
	for _, s := range twins {
		msgs = append(msgs, k.msg(waybill.Tenant(s), waybill.Key(s), waybill.Delay(far), onTopic(topicOf(s))))
	}
	ids := k.stage(msgs...)
	for i, s := range twins {
		for what, f := range map[string]admin.Filter{
			"tenant": {Tenants: []string{s}}, "key": {Keys: []string{s}}, "topic": {Topics: []string{msgs[i].Topic}}, "id": {IDs: ids[i : i+1]},
		} {
			got, _ := k.list(f, admin.PageRequest{})
			k.same(fmt.Sprintf("a list by the %s %q", what, s), got, ids[i:i+1], ids)
		}
	}
}
