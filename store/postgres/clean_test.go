package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres"
)

// ST-11 DB-09: a record that expires while it waits for a time is abandoned, and its owner is told; a due one is left
// to its owner.
func TestCleanExpires(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{Retention: waybill.Retention{Abandoned: time.Hour}})
	ttl := waybill.TTL(50 * time.Millisecond)
	stage(t, pool, o, message(waybill.ID("scheduled"), waybill.Delay(time.Hour), ttl), message(waybill.ID("retry"), waybill.Key("a"), ttl), message(waybill.ID("held"), waybill.Key("b"), ttl),
		message(waybill.ID("due"), ttl), message(waybill.ID("lives"), waybill.Delay(time.Hour)))
	c := holdNext(t, o, want(10))
	settle(t, o, core.Retry(&c.Records[0], errNo, time.Hour), core.Release(&c.Records[2], 0, false))
	patience.Until(t, "they expire", func() bool {
		return queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE expires_at > clock_timestamp()") == 0
	})
	done, err := o.Clean(t.Context(), "me", time.Minute)
	if err != nil || done.Expired != 2 || !done.Leader {
		t.Fatalf("%+v, %v", done, err)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_outbox WHERE id IN ('scheduled', 'retry') AND state = 5 AND reason = 'expired' AND blocks = (key <> '')`); n != 2 {
		t.Errorf("%d of 2 are abandoned", n)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_outbox_notices WHERE kind = 1 AND key = 'a'`); n != 1 {
		t.Errorf("%d notices", n)
	}
	if other, err := o.Clean(t.Context(), "another", time.Minute); err != nil || other.Leader {
		t.Errorf("%+v, %v", other, err)
	}
	exec(t, pool, "UPDATE waybill.waybill_outbox SET settled_at = settled_at - interval '2 hours' WHERE settled_at IS NOT NULL")
	exec(t, pool, "DELETE FROM waybill.waybill_outbox_notices")
	done, err = o.Clean(t.Context(), "me", time.Minute)
	if n := done.Deleted[core.CleanedKind{State: core.StateAbandoned, Reason: waybill.ReasonExpired}]; err != nil || n != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_outbox_notices WHERE kind = 1 AND key = 'a'`); n != 1 {
		t.Errorf("%d notices after the key was freed", n)
	}
}

// OR-05: the decisions of operators are told to the owners, in the same transaction: by key, by record, or for a whole
// route.
func TestOperatorsTellOwners(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	self := session(t, o, waybill.DefaultRoute)
	abandon := func(msgs ...waybill.Message) {
		stage(t, pool, o, msgs...)
		for _, r := range read(t, o, self, waybill.DefaultRoute).Ranges[0].Records {
			settleBy(t, o, self, core.Abandon(&r, waybill.ReasonRejected, errNo))
		}
	}
	notices := func() (kinds []core.NoticeKind) {
		p := read(t, o, self, waybill.DefaultRoute)
		for i := range p.Notices {
			kinds = append(kinds, p.Notices[i].Kind)
			settleBy(t, o, self, core.DeleteNotice(&p.Notices[i]))
		}
		return kinds
	}
	abandon(message(waybill.ID("a"), waybill.Key("k")), message(waybill.ID("b"), waybill.Key("k")), message(waybill.ID("c")))
	keys, _, err := o.BlockedKeys(t.Context(), admin.BlockedKeysRequest{Route: waybill.DefaultRoute, BlockAfterAbandon: true, Limit: 10})
	if err != nil || len(keys) != 1 || keys[0].Head.Envelope.ID != "a" {
		t.Fatalf("%+v, %v", keys, err)
	}
	if err := o.DecideHead(t.Context(), waybill.DefaultRoute, "k", "a", admin.HeadSkip); err != nil {
		t.Fatal(err)
	}
	if got := notices(); len(got) != 1 || got[0] != core.NoticeKey {
		t.Errorf("a skipped head told %v", got)
	}
	if err := o.DecideHead(t.Context(), waybill.DefaultRoute, "k", "b", admin.HeadRequeue); err != nil {
		t.Fatal(err)
	}
	if got := notices(); len(got) != 1 || got[0] != core.NoticeKey {
		t.Errorf("a requeued head told %v", got)
	}
	if rs := read(t, o, self, waybill.DefaultRoute).Ranges[0].Records; len(rs) != 1 || rs[0].ID != "b" || rs[0].Attempts != 0 {
		t.Errorf("ready: %+v", rs)
	}
	done, err := o.Redrive(t.Context(), admin.RedriveRequest{Filter: admin.Filter{IDs: []string{"c"}}})
	if err != nil || done.Changed != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	if got := notices(); len(got) != 1 || got[0] != core.NoticeRecord {
		t.Errorf("a redrive told %v", got)
	}
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, state, settled_at, reason) SELECT 't', '', 5, now(), 'rejected' FROM generate_series(1, 200)`)
	if done, err = o.Redrive(t.Context(), admin.RedriveRequest{All: true, Page: admin.PageRequest{Limit: 1000}}); err != nil || done.Changed < 200 {
		t.Fatalf("%+v, %v", done, err)
	}
	got := notices()
	if len(got) == 0 || got[len(got)-1] != core.NoticeReread {
		t.Errorf("a large redrive told %v", got)
	}
}

// The epoch rises when an operator says that the database was restored.
func TestRestored(t *testing.T) {
	t.Parallel()
	o, _ := newOutbox(t, postgres.Options{})
	self := join(t, o, "r", 1)
	before := read(t, o, self, "r").StoreEpoch
	if err := o.Restored(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := read(t, o, self, "r").StoreEpoch; after == before {
		t.Errorf("epoch %s", after)
	}
}

// A message that is cancellable and was taken by a member is not cancelled by a transaction whose snapshot is older.
func TestCancelWithAnOldSnapshot(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, o, message(waybill.ID("a"), waybill.DedupeKey("d")))
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	holdNext(t, o, want(1))
	if got, err := o.Cancel(t.Context(), tx, waybill.CancelKey{ID: "a"}); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("%v, %v", got, err)
	}
}
