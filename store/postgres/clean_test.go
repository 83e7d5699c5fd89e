package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
	"github.com/waybill-go/waybill/store/postgres"
)

// ST-11 DB-09: what expires while it waits for a time is abandoned, and its owner is told; what is due is left to its
// owner.
func TestCleanExpires(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{Retention: core.Retention{Abandoned: time.Hour}})
	ttl := core.TTL(50 * time.Millisecond)
	stage(t, pool, o, message(core.ID("scheduled"), core.Delay(time.Hour), ttl), message(core.ID("retry"), core.Key("a"), ttl), message(core.ID("held"), core.Key("b"), ttl),
		message(core.ID("due"), ttl), message(core.ID("lives"), core.Delay(time.Hour)))
	c := claim(t, o, want(10))
	settle(t, o, outbox.Retry(&c.Records[0], errNo, time.Hour), outbox.Release(&c.Records[2], 0, false))
	eventually(t, "they expire", func() bool {
		return queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE expires_at > clock_timestamp()") == 0
	})
	done, err := o.Clean(t.Context(), "me", time.Minute)
	if err != nil || done.Expired != 2 || !done.Elected {
		t.Fatalf("%+v, %v", done, err)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_outbox WHERE id IN ('scheduled', 'retry') AND state = 5 AND reason = 'expired' AND blocks = (key <> '')`); n != 2 {
		t.Errorf("%d of 2 are abandoned", n)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_outbox_control WHERE kind = 1 AND key = 'a'`); n != 1 {
		t.Errorf("%d control records", n)
	}
	if other, err := o.Clean(t.Context(), "another", time.Minute); err != nil || other.Elected {
		t.Errorf("%+v, %v", other, err)
	}
	exec(t, pool, "UPDATE waybill.waybill_outbox SET settled_at = settled_at - interval '2 hours' WHERE settled_at IS NOT NULL")
	exec(t, pool, "DELETE FROM waybill.waybill_outbox_control")
	done, err = o.Clean(t.Context(), "me", time.Minute)
	if n := done.Deleted[core.CleanedKind{State: core.StateAbandoned, Reason: core.ReasonExpired}]; err != nil || n != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_outbox_control WHERE kind = 1 AND key = 'a'`); n != 1 {
		t.Errorf("%d control records after the key was freed", n)
	}
}

// OR-05: what operators decide is told to the owners, in the same transaction: by key, by record, or for a whole route.
func TestOperatorsTellOwners(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	self := session(t, o, core.DefaultRoute)
	abandon := func(msgs ...core.Message) {
		stage(t, pool, o, msgs...)
		for _, r := range read(t, o, self, core.DefaultRoute).Ranges[0].Records {
			settleBy(t, o, self, outbox.Abandon(&r, core.ReasonRejected, errNo))
		}
	}
	controls := func() (kinds []outbox.ControlKind) {
		p := read(t, o, self, core.DefaultRoute)
		for i := range p.Control {
			kinds = append(kinds, p.Control[i].Kind)
			settleBy(t, o, self, outbox.Heeded(&p.Control[i]))
		}
		return kinds
	}
	abandon(message(core.ID("a"), core.Key("k")), message(core.ID("b"), core.Key("k")), message(core.ID("c")))
	keys, _, err := o.BlockedKeys(t.Context(), core.BlockedKeysRequest{Route: core.DefaultRoute, BlockAfterAbandon: true, Limit: 10})
	if err != nil || len(keys) != 1 || keys[0].Head.Envelope.ID != "a" {
		t.Fatalf("%+v, %v", keys, err)
	}
	if err := o.DecideHead(t.Context(), core.DefaultRoute, "k", "a", core.HeadSkip); err != nil {
		t.Fatal(err)
	}
	if got := controls(); len(got) != 1 || got[0] != outbox.ControlKey {
		t.Errorf("a skipped head told %v", got)
	}
	if err := o.DecideHead(t.Context(), core.DefaultRoute, "k", "b", core.HeadRequeue); err != nil {
		t.Fatal(err)
	}
	if got := controls(); len(got) != 1 || got[0] != outbox.ControlKey {
		t.Errorf("a requeued head told %v", got)
	}
	if rs := read(t, o, self, core.DefaultRoute).Ranges[0].Records; len(rs) != 1 || rs[0].ID != "b" || rs[0].Attempts != 0 {
		t.Errorf("ready: %+v", rs)
	}
	done, err := o.Redrive(t.Context(), core.RedriveRequest{Filter: core.Filter{IDs: []string{"c"}}})
	if err != nil || done.Changed != 1 {
		t.Fatalf("%+v, %v", done, err)
	}
	if got := controls(); len(got) != 1 || got[0] != outbox.ControlRecord {
		t.Errorf("a redrive told %v", got)
	}
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, state, settled_at, reason) SELECT 't', '', 5, now(), 'rejected' FROM generate_series(1, 200)`)
	if done, err = o.Redrive(t.Context(), core.RedriveRequest{All: true, Page: core.Page{Limit: 1000}}); err != nil || done.Changed < 200 {
		t.Fatalf("%+v, %v", done, err)
	}
	got := controls()
	if len(got) == 0 || got[len(got)-1] != outbox.ControlFrom {
		t.Errorf("a large redrive told %v", got)
	}
}

// The epoch rises when somebody says that the database was restored.
func TestRestored(t *testing.T) {
	t.Parallel()
	o, _ := newOutbox(t, postgres.Options{})
	self := join(t, o, "r", 1)
	before := read(t, o, self, "r").Epoch
	if err := o.Restored(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := read(t, o, self, "r").Epoch; after == before {
		t.Errorf("epoch %s", after)
	}
}

// A message that is withdrawable and was taken by a member is not withdrawn by a transaction whose snapshot is older.
func TestCancelWithAnOldSnapshot(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, o, message(core.ID("a"), core.DedupeKey("d")))
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	claim(t, o, want(1))
	if got, err := o.Cancel(t.Context(), tx, core.CancelKey{ID: "a"}); core.ClassOf(err) != core.ClassOutage {
		t.Errorf("%v, %v", got, err)
	}
}
