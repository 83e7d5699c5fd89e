package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres"
)

// backup is what a dump would hold of an outbox.
const backup = `
CREATE TABLE saved AS SELECT * FROM waybill.waybill_outbox;
CREATE TABLE saved_meta AS SELECT * FROM waybill.waybill_meta;
CREATE TABLE saved_members AS SELECT * FROM waybill.waybill_outbox_members;
CREATE TABLE saved_partitions AS SELECT * FROM waybill.waybill_outbox_partitions;
CREATE TABLE saved_routes AS SELECT * FROM waybill.waybill_outbox_routes;
CREATE TABLE saved_at AS SELECT last_value AS seq, is_called AS called FROM waybill.waybill_outbox_seq`

// restoreSQL puts all of it back, the sequence too, as a restore of the database would.
const restoreSQL = `
BEGIN;
LOCK waybill.waybill_outbox_members, waybill.waybill_outbox_routes, waybill.waybill_outbox_partitions, waybill.waybill_outbox; -- as relays do
TRUNCATE waybill.waybill_outbox, waybill.waybill_outbox_members, waybill.waybill_outbox_partitions, waybill.waybill_outbox_routes, waybill.waybill_outbox_notices;
DO $$ DECLARE columns text; BEGIN
    SELECT string_agg(quote_ident(attname), ', ') INTO columns FROM pg_attribute
    WHERE attrelid = 'waybill.waybill_outbox'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
    EXECUTE format('INSERT INTO waybill.waybill_outbox (%1$s) SELECT %1$s FROM saved', columns);
END $$;
INSERT INTO waybill.waybill_outbox_members SELECT * FROM saved_members;
INSERT INTO waybill.waybill_outbox_partitions SELECT * FROM saved_partitions;
INSERT INTO waybill.waybill_outbox_routes SELECT * FROM saved_routes;
UPDATE waybill.waybill_meta m SET value = s.value, owner = s.owner FROM saved_meta s WHERE s.name = m.name;
SELECT setval('waybill.waybill_outbox_seq', seq, called) FROM saved_at;
COMMIT`

// DB-22: the outbox goes back in time under a relay that runs on. Records that came back are published again, and later
// ones too, in the order of their keys.
func TestRestoreUnderARunningRelay(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name          string
		before, after int  // staged before and after the backup
		published     bool // what was staged before had been published when the backup was made
		overtake      int  // staged after the restore, before the relay can notice
		declared      bool // somebody says that the database was restored
	}{
		{name: "noticed by its numbers", before: 1000, after: 900},
		{name: "declared", before: 1000, after: 900, declared: true},
		{name: "overtaken at once, and declared", before: 500, after: 300, overtake: 700, declared: true},
		{name: "to an empty outbox", before: 300, published: true, after: 900},
		{name: "to an empty outbox, with a few new ones", before: 300, published: true, after: 900, overtake: 10},
		{name: "few behind a relay far ahead", before: 20, after: 3000, overtake: 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o, pool := newOutbox(t, postgres.Options{})
			var bus *bus
			if tc.published {
				bus = runPump(t, o, waybill.DefaultRoute)
			}
			stage(t, pool, o, batch("a", tc.before)...)
			if tc.published {
				bus.has(t, idsOf("a", tc.before)...)
				patience.Until(t, "they are settled", func() bool { return queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox") == 0 })
			}
			exec(t, pool, backup)
			if !tc.published {
				bus = runPump(t, o, waybill.DefaultRoute)
			}
			stage(t, pool, o, batch("b", tc.after)...)
			bus.has(t, append(idsOf("a", tc.before), idsOf("b", tc.after)...)...)
			mark, err := o.HighWater(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			restore := restoreSQL
			if tc.declared {
				restore = restoreSQL[:len(restoreSQL)-len("COMMIT")] + "UPDATE waybill.waybill_meta SET value = value + 1 WHERE name = 'waybill_outbox.epoch'; COMMIT"
			}
			bus.forget()
			exec(t, pool, restore)
			var want []string
			if tc.overtake > 0 {
				stage(t, pool, o, batch("c", tc.overtake)...)
				want = idsOf("c", tc.overtake)
			}
			if !tc.published {
				want = append(want, idsOf("a", tc.before)...)
			}
			bus.has(t, want...)
			stage(t, pool, o, batch("d", 100)...)
			bus.has(t, idsOf("d", 100)...)
			patience.Until(t, "nothing is left", func() bool { return queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox") == 0 })
			for _, key := range []string{"k0", "k7"} {
				ids := bus.of(key)
				// was out when the database went back
				ids = slices.DeleteFunc(ids, func(id string) bool { return id[0] == 'b' })
				if !slices.IsSorted(slices.Compact(ids)) {
					t.Errorf("key %s is out of order: %.300q", key, ids)
				}
			}
			// The clock of a new process begins above what is remembered, that of the running one goes on.
			if now := o.Clock().Last(); now <= mark {
				t.Errorf("the clock stands at %v after the restore, not above %v", now, mark)
			}
		})
	}
}

// DB-22: a session that the restored database does not know settles nothing, and the cleaner's lease ends.
func TestRestoredSessions(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, o, batch("a", 20)...)
	if _, err := o.Clean(t.Context(), "gone", time.Hour); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, backup)
	// from a server whose clock was ahead
	exec(t, pool, "UPDATE saved_meta SET value = value + 7200000000 WHERE name LIKE '%.cleaner'")
	self := session(t, o, waybill.DefaultRoute)
	c := holdNext(t, o, want(10))
	exec(t, pool, restoreSQL)
	for _, out := range []core.Outcome{core.Published(&c.Records[0]), core.Retry(&c.Records[1], errNo, 0)} {
		if err := o.Settle(t.Context(), self, []core.Outcome{out})[0]; waybill.ClassOf(err) != waybill.ClassRejected {
			t.Errorf("a settle from before the restore: %v", err)
		}
	}
	if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE attempts = 0 AND hold = 0"); n != 20 {
		t.Errorf("%d of 20 messages came back as they were", n)
	}
	other := outboxOn(t, pool, postgres.Options{})
	done, err := other.Clean(t.Context(), "new", time.Minute)
	if err != nil || !done.Leader {
		t.Errorf("nobody can clean after the restore: %+v %v", done, err)
	}
}
