package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/hlc"
)

var stageChecks = []named{
	{"commit-shows-message", commitShowsMessage},
	{"rollback-leaves-nothing", rollbackLeavesNothing},
	{"many-messages-mixed-topics", manyMessagesMixedTopics},
	{"several-routes-of-one-message", severalRoutesOfOneMessage},
	{"duplicate-is-reported", duplicateIsReported},
	{"id-of-another-source-is-refused", idOfAnotherSourceIsRefused},
	{"duplicate-of-rolled-back-is-none", duplicateOfRolledBackIsNone},
	{"duplicate-of-abandoned-is-reported", duplicateOfAbandonedIsReported},
	{"duplicate-of-running-transaction-waits", duplicateOfRunningTransactionWaits},
	{"envelope-round-trip", envelopeRoundTrip},
	{"large-body-round-trip", largeBodyRoundTrip},
	{"empty-fields-are-filled", emptyFieldsAreFilled},
	{"context-fills-scope", contextFillsScope},
	{"bad-input-is-refused-as-a-whole", badInputIsRefusedAsAWhole},
	{"stage-copies-its-input", stageCopiesItsInput},
	{"stage-heeds-its-context", stageHeedsItsContext},
}

// A staged message is in line once its transaction has committed, not before, and once. ST-01.
func commitShowsMessage(k *kit) {
	tx := k.begin()
	staged := k.stageIn(tx, k.msg())
	k.failIf(staged[0].Route != k.route || staged[0].ID == "" || staged[0].Duplicate,
		"stage returned %+v for a new message on route %s", staged[0], k.route)
	k.hidden()
	k.commit(tx)
	rs := k.takeIDs(stagedIDs(staged))
	k.none("it is out")
	k.published(rs...)
	k.none("it was published")
}

// A message of a transaction that rolled back never existed. ST-01.
func rollbackLeavesNothing(k *kit) {
	tx := k.begin()
	ids := stagedIDs(k.stageIn(tx, k.msg(), k.msg()))
	k.rollback(tx)
	k.none("its transaction rolled back")
	for _, id := range ids {
		if rec, ok := k.stored(id); ok && rec != nil {
			k.fail("a record of a rolled back transaction is stored: %+v", *rec)
		}
	}
}

// Any number of messages with mixed topics go in one call; results and sequence follow the input. ST-02.
func manyMessagesMixedTopics(k *kit) {
	const n = 257
	msgs := k.msgs(n)
	for i := range msgs {
		msgs[i].Topic = fmt.Sprintf("storetest.topic%d", i%7)
		msgs[i].Body = fmt.Append(nil, "body", i)
	}
	ids := k.stage(msgs...)
	seen := map[string]bool{}
	for i, r := range k.takeIDs(ids) {
		k.failIf(seen[r.Envelope.ID], "message %d was handed out twice", i)
		seen[r.Envelope.ID] = true
		k.failIf(r.Envelope.Topic != msgs[i].Topic || !bytes.Equal(r.Envelope.Body, msgs[i].Body),
			"message %d has another message's topic or body", i)
	}
	k.none("all are out")
}

// One message on two routes is two records with one id, settled independently. ST-02, ST-06.
func severalRoutesOfOneMessage(k *kit) {
	other := k.other(k.h)
	tx := k.begin()
	staged := k.stageIn(tx, k.msg(waybill.Routes(k.route, other.route)), k.msg(waybill.Routes(other.route)))
	k.commit(tx)
	k.failIf(staged[0].ID != staged[1].ID || staged[0].Route != k.route || staged[1].Route != other.route || staged[2].Route != other.route,
		"stage returned %+v, want one result a message and route in the message's order", staged)
	k.published(k.takeIDs(stagedIDs(staged[:1]))...)
	k.none("only one message is on this route")
	other.takeIDs(stagedIDs(staged[1:]))
}

// The second stage of one (route, id) writes nothing and reports a duplicate, within one call, one transaction and
// across them. The same id on another route is another record. ST-05.
func duplicateIsReported(k *kit) {
	id, other := waybill.NewID(), k.other(k.h)
	expect := func(where string, staged []waybill.Staged, want ...bool) {
		for i := range want {
			k.failIf(staged[i].Duplicate != want[i] || staged[i].ID != id, "%s: result %d is %+v, want duplicate %v", where, i, staged[i], want[i])
		}
	}
	tx := k.begin()
	expect("within one call", k.stageIn(tx, k.msg(waybill.ID(id)), k.msg(waybill.ID(id))), false, true)
	expect("within one transaction", k.stageIn(tx, k.msg(waybill.ID(id))), true)
	expect("on another route", k.stageIn(tx, other.msg(waybill.ID(id))), false)
	k.commit(tx)
	tx = k.begin()
	fresh := k.msg()
	staged := k.stageIn(tx, k.msg(waybill.ID(id)), fresh)
	expect("in a later transaction", staged, true)
	k.failIf(staged[1].Duplicate, "a new message beside a duplicate is reported as a duplicate")
	k.commit(tx)
	k.takeIDs([]string{id, staged[1].ID})
	k.none("it was a duplicate")
	other.takeIDs([]string{id})
	tx = k.begin()
	expect("while it is held", k.stageIn(tx, k.msg(waybill.ID(id))), true)
	k.commit(tx)
}

// A message with the id of another source's is another message. Stage fails, alone and beside others, with a dedupe key
// or without, within a call and across transactions, and while the other one is kept: as a duplicate it would be lost
// without a word. ST-05.
func idOfAnotherSourceIsRefused(k *kit) {
	id := waybill.NewID()
	of := func(source string, opts ...waybill.MessageOption) waybill.Message {
		return k.msg(append(opts, waybill.ID(id), fromSource(source))...)
	}
	refused := func(where string, msgs ...waybill.Message) {
		k.conflict(where+": the same id from another source", msgs...)
	}
	refused("within one call", of("/storetest/a"), of("/storetest/b"))
	k.stage(of("/storetest/a"))
	refused("alone", of("/storetest/b"))
	refused("beside others", k.msg(), of("/storetest/b"), k.msg())
	refused("with a dedupe key", of("/storetest/b", waybill.DedupeKey("k")))
	s := k.stageNow(of("/storetest/a"))[0]
	k.failIf(!s.Duplicate, "the same id from the same source: stage answered %+v, want a duplicate", s)
	other := k.other(k.h)
	s = k.stageNow(other.msg(waybill.ID(id), fromSource("/storetest/b")))[0]
	k.failIf(s.Duplicate, "the same id from another source on another route: stage answered %+v", s)
	k.abandon(waybill.ReasonRejected, id)
	if rec, ok := k.stored(id); !ok || rec != nil {
		refused("while the other one is kept", of("/storetest/b"))
	}
}

// A message that was rolled back makes no later one a duplicate. ST-05.
func duplicateOfRolledBackIsNone(k *kit) {
	id := waybill.NewID()
	tx := k.begin()
	k.stageIn(tx, k.msg(waybill.ID(id)))
	k.rollback(tx)
	tx = k.begin()
	s := k.stageIn(tx, k.msg(waybill.ID(id)))
	k.failIf(s[0].Duplicate, "a message is reported as a duplicate of one that was rolled back")
	k.commit(tx)
	k.takeIDs([]string{id})
}

// An abandoned record that is kept still makes a duplicate. ST-05.
func duplicateOfAbandonedIsReported(k *kit) {
	ids := k.stage(k.msg())
	k.abandon(waybill.ReasonRejected, ids...)
	if rec, ok := k.stored(ids[0]); !ok || rec == nil {
		k.undeclared("abandoned records are not kept, or cannot be seen")
	}
	tx := k.begin()
	s := k.stageIn(tx, k.msg(waybill.ID(ids[0])))
	k.failIf(!s[0].Duplicate, "a second message with the (route, id) of an abandoned record is not reported as a duplicate")
	k.commit(tx)
	k.none("it was abandoned, and a duplicate")
}

// Two transactions that stage one (route, id) at once: exactly one record, which the second one stages if the first one
// rolls back. ST-05.
func duplicateOfRunningTransactionWaits(k *kit) {
	for _, commit := range []bool{true, false} {
		id := waybill.NewID()
		first := k.begin()
		k.stageIn(first, k.msg(waybill.ID(id)))
		second, err := k.stageBeside(k.msg(waybill.ID(id)), func() { k.end(first, commit) })
		k.must("second transaction", err)
		dup := second.Duplicate
		k.failIf(dup != commit, "the first transaction committed: %v; the second's message is a duplicate: %v", commit, dup)
		k.drainIDs([]string{id})
		k.none("there was one message")
	}
}

// Every field of an envelope comes back as it was staged. ST-12.
func envelopeRoundTrip(k *kit) {
	at := time.Date(2024, 2, 29, 23, 59, 59, 123456000, time.FixedZone("", 7200))
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	stamp, err := hlc.New(at.UnixMilli(), 7)
	k.must("stamp", err)
	full := k.msg(waybill.Key("schlüssel/Ω 🗝"), waybill.Type("com.example.Ereignis"), waybill.Subject("order/17"),
		waybill.Tenant("mandant-ä"),
		waybill.CorrelationID("corr"), waybill.Priority(9), waybill.Header("plain", "value"), waybill.Header("Ünï 🗝",
			"välue\n\t\"'\\ {},;=%\x01"),
		waybill.Header("empty", ""), waybill.OccurredAt(at))
	full.Source, full.CausationID, full.RunID = "/other", "cause", "run"
	full.Lineage = []string{"root,1", "", waybill.LineageCut, "parent \" ünï \\"}
	full.HLC, full.Expires = stamp, time.Now().Add(far)
	full.TraceParent, full.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1,b=2"
	full.Body, full.ContentType = all, "application/x-test; charset=binary"
	empty := k.msg()
	empty.Body = nil
	edge := k.msg(waybill.ID(strings.Repeat("i", waybill.MaxNameBytes)), waybill.Key(strings.Repeat("k", waybill.MaxNameBytes)))
	edge.Body = []byte{}
	msgs := []waybill.Message{full, empty, edge}
	ids := k.stage(msgs...)
	for i, r := range k.takeIDs(ids) {
		want, got := msgs[i].Envelope, r.Envelope
		want.ID = ids[i]
		if i > 0 { // what was left empty is filled, see empty-fields-are-filled
			want.Type, want.Source, want.Time, want.HLC = got.Type, got.Source, got.Time, got.HLC
		}
		want.Expires = want.Expires.Truncate(time.Microsecond)
		d := cmp.Diff(want, got, cmpopts.EquateEmpty())
		k.failIf(d != "", "message %d came back changed (-staged +handed out):\n%s", i, d)
		k.failIf(r.Err != nil, "message %d cannot be read: %w", i, r.Err)
	}
}

// A body of the default limit comes back whole. ST-12, ST-15.
func largeBodyRoundTrip(k *kit) {
	m := k.msg()
	m.Body = bytes.Repeat([]byte("0123456789abcde\x00"), 700_000/16)
	k.stage(m)
	rs := k.take(1)
	k.failIf(!bytes.Equal(rs[0].Envelope.Body, m.Body), "a body of %d bytes came back changed, with %d", len(m.Body), len(rs[0].Envelope.Body))
}

// Empty fields are filled in at stage time. A message without routes is on the default one. ST-12.
func emptyFieldsAreFilled(k *kit) {
	tx := k.begin()
	staged, err := tx.Stage(k.ctx, k.msg(waybill.Routes()))
	k.must("stage", err)
	k.failIf(len(staged) != 1 || staged[0].Route != waybill.DefaultRoute, "a message without routes went to %+v", staged)
	k.rollback(tx) // other relays may serve the default route
	before := time.Now()
	tx = k.begin()
	staged, err = tx.Stage(k.ctx, k.msg(waybill.ID("")))
	k.must("stage", err)
	k.commit(tx)
	e := &k.take(1)[0].Envelope
	if len(staged) != 1 || e.ID == "" || e.ID != staged[0].ID || e.Type != k.topic || e.Source == "" || e.HLC.IsZero() ||
		!e.Expires.IsZero() && e.Expires.Before(before) {
		k.fail("fields were not filled: %+v", *e)
	}
	d := e.Time.Sub(before).Abs()
	k.failIf(d > time.Since(before)+time.Second, "the time of a message staged now is %s off", d)
}

// Correlation, causation, tenant, run and lineage come from the context. ST-12.
func contextFillsScope(k *kit) {
	scope := waybill.Scope{CorrelationID: "corr", CausationID: "cause", Tenant: "tenant", RunID: "run", Lineage: []string{"a", "b"}}
	tx := k.begin()
	_, err := tx.Stage(waybill.WithScope(k.ctx, scope), k.msg())
	k.must("stage", err)
	k.commit(tx)
	e := &k.take(1)[0].Envelope
	got := waybill.Scope{CorrelationID: e.CorrelationID, CausationID: e.CausationID, Tenant: e.Tenant, RunID: e.RunID, Lineage: e.Lineage}
	d := cmp.Diff(scope, got)
	k.failIf(d != "", "the context's scope did not reach the message (-want +got):\n%s", d)
}

// Bad messages are refused with a typed error, the good ones beside them too, and the transaction goes on. ST-15.
func badInputIsRefusedAsAWhole(k *kit) {
	bad := map[string]func(m *waybill.Message){
		"no topic":           func(m *waybill.Message) { m.Topic = "" },
		"long id":            func(m *waybill.Message) { m.ID = strings.Repeat("x", waybill.MaxNameBytes+1) },
		"invalid UTF-8":      func(m *waybill.Message) { m.Key = "a\xffb" },
		"NUL":                func(m *waybill.Message) { m.Subject = "a\x00b" },
		"NUL in a header":    func(m *waybill.Message) { m.Headers = map[string]string{"h": "\x00"} },
		"reserved header":    func(m *waybill.Message) { m.Headers = map[string]string{"traceparent": "x"} },
		"empty route":        func(m *waybill.Message) { m.Routes = []string{""} },
		"two due times":      func(m *waybill.Message) { m.Delay, m.DeliverAt = time.Second, time.Now().Add(time.Hour) },
		"negative delay":     func(m *waybill.Message) { m.Delay = -1 },
		"due in 500 years":   func(m *waybill.Message) { m.DeliverAt = time.Now().AddDate(500, 0, 0) },
		"too high priority":  func(m *waybill.Message) { m.Priority = 10 },
		"has expired":        func(m *waybill.Message) { m.Expires = time.Now().Add(-time.Hour) },
		"too long a lineage": func(m *waybill.Message) { m.Lineage = make([]string, waybill.MaxLineage+1) },
	}
	tx := k.begin()
	for name, spoil := range bad {
		m := k.msg()
		spoil(&m)
		_, err := tx.Stage(k.ctx, k.msg(), m, k.msg())
		var invalid *waybill.InvalidError
		k.failIf(!errors.As(err, &invalid) || !errors.Is(err, waybill.ErrInvalid),
			"%s: got %v, want a *waybill.InvalidError", name, err)
	}
	ids := stagedIDs(k.stageIn(tx, k.msg()))
	k.commit(tx)
	k.takeIDs(ids)
	k.none("it was refused, or beside one that was")
}

// A store does not keep its arguments, and its results belong to the caller. ST-12.
func stageCopiesItsInput(k *kit) {
	m := k.msg(waybill.Header("h", "v"))
	m.Body, m.Lineage = []byte("body"), []string{"a"}
	tx := k.begin()
	k.stageIn(tx, m)
	spoil := func(e *waybill.Envelope) {
		e.Body[0], e.Headers["h"], e.Lineage[0] = 'X', "X", "X"
	}
	spoil(&m.Envelope)
	k.commit(tx)
	for range 2 {
		r := k.take(1)[0]
		e := &r.Envelope
		k.failIf(string(e.Body) != "body" || e.Headers["h"] != "v" || e.Lineage[0] != "a",
			"a message changed after it was staged: %q %v %v", e.Body, e.Headers, e.Lineage)
		spoil(e)
		k.release(r)
	}
}

// Stage with an ended context fails at once, and nothing of it is committed. ST-01.
func stageHeedsItsContext(k *kit) {
	tx := k.begin()
	_, err := tx.Stage(k.ended(), k.msg())
	k.failIf(err == nil, "stage with an ended context succeeded")
	_ = tx.Rollback(k.ctx) // the connection may be gone with the context
	k.none("its staging had failed")
}
