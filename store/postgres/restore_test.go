package postgres_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// backup is what a dump would hold of an outbox.
const backup = `
CREATE TABLE saved AS SELECT * FROM waybill.waybill_outbox;
CREATE TABLE saved_meta AS SELECT * FROM waybill.waybill_meta;
CREATE TABLE saved_at AS SELECT (SELECT last_value FROM waybill.waybill_outbox_seq_seq) AS seq, (SELECT is_called FROM waybill.waybill_outbox_seq_seq) AS called,
	(SELECT last_value FROM waybill.waybill_outbox_wake) AS wake`

// restoreRows puts the rows back; restoreSequence the rest, as a restore of the whole database would.
const (
	restoreRows = `
TRUNCATE waybill.waybill_outbox;
INSERT INTO waybill.waybill_outbox OVERRIDING SYSTEM VALUE SELECT * FROM saved;`
	restoreSequence = `
SELECT setval('waybill.waybill_outbox_seq_seq', seq, called), setval('waybill.waybill_outbox_wake', wake) FROM saved_at;
UPDATE waybill.waybill_meta m SET value = s.value, owner = s.owner FROM saved_meta s WHERE s.name = m.name;`
)

// publishAll claims and publishes what there is, and returns the ids by key in the order of their arrival.
func publishAll(t *testing.T, o *postgres.Outbox, session int64) map[string][]string {
	t.Helper()
	got := map[string][]string{}
	req := request(500)
	req.Session = session
	for {
		c := claim(t, o, req)
		if len(c.Records) == 0 {
			return got
		}
		var out []core.Outcome
		for i := range c.Records {
			r := &c.Records[i]
			got[r.Envelope.Key] = append(got[r.Envelope.Key], r.Envelope.ID)
			out = append(out, core.Published(r))
		}
		settle(t, o, out...)
	}
}

// batch returns n messages of 10 keys; their ids begin with prefix and sort in their order.
func batch(prefix string, n int) []core.Message {
	msgs := make([]core.Message, n)
	for i := range msgs {
		msgs[i] = message(core.ID(fmt.Sprintf("%s-%06d", prefix, i)), core.Key(fmt.Sprint("k", i%10)))
	}
	return msgs
}

// DB-22: the outbox goes back in time under a relay that runs on. What came back is published again within a lap or
// two, and what is staged afterwards too, in the order of its keys.
func TestRestoreUnderARunningRelay(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before, after int  // staged before and after the backup
		published     bool // what was staged before had been published when the backup was made
		sequence      bool // the sequence goes back too
		overtake      int  // staged after the restore, before the next claim
		idle          time.Duration
	}{
		"whole database":                    {before: 2000, after: 1500, sequence: true},
		"whole database, relay was asleep":  {before: 1000, after: 600, sequence: true, overtake: 1500},
		"to an empty outbox":                {before: 500, published: true, after: 2000, sequence: true, overtake: 10},
		"to an empty outbox, nothing new":   {before: 500, published: true, after: 2000, sequence: true},
		"the rows alone":                    {before: 2000, after: 1500},
		"the rows alone, with new ones":     {before: 1000, after: 600, overtake: 1500},
		"the rows alone, after a rest":      {before: 1000, after: 600, overtake: 1500, idle: 3 * time.Second},
		"few rows behind a relay far ahead": {before: 20, after: 5000, sequence: true, overtake: 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const session = 42
			o, pool := newOutbox(t, postgres.Options{})
			stage(t, pool, o, batch("a", tc.before)...)
			if tc.published {
				publishAll(t, o, session)
			}
			exec(t, pool, backup)
			publishAll(t, o, session)
			for i := range 3 {
				stage(t, pool, o, batch(fmt.Sprint("b", i), tc.after/3)...)
				publishAll(t, o, session)
			}
			for end := time.Now().Add(tc.idle); time.Now().Before(end); { // until it knows that nothing older can appear
				publishAll(t, o, session)
				<-time.After(20 * time.Millisecond)
			}
			mark, err := o.HighWater(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			restore := restoreRows
			if tc.sequence {
				restore += restoreSequence
			}
			exec(t, pool, "BEGIN; "+restore+" COMMIT")
			if tc.overtake > 0 {
				stage(t, pool, o, batch("c", tc.overtake)...)
			}
			want := tc.before + tc.overtake
			if tc.published {
				want = tc.overtake
			}
			got := map[string][]string{}
			n := 0
			start := time.Now()
			collect := func() bool {
				for key, ids := range publishAll(t, o, session) {
					got[key] = append(got[key], ids...)
					n += len(ids)
				}
				return n >= want
			}
			eventually(t, fmt.Sprintf("%d messages that came back, or are new", want), collect)
			t.Logf("it took %s", time.Since(start))
			for key, ids := range got {
				if !tc.sequence || tc.overtake > 0 { // what had been published already may come in another order, until a lap has met it
					ids = slices.DeleteFunc(ids, func(id string) bool { return id[0] == 'a' })
				}
				if !slices.IsSorted(ids) {
					t.Errorf("key %s is out of order: %.500s", key, fmt.Sprint(ids))
				}
			}
			// Nothing is left to wait for, and new ones are found at once.
			stage(t, pool, o, batch("d", 100)...)
			want += 100
			eventually(t, "what was staged afterwards", collect)
			if left := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); left != 0 || n != want {
				t.Errorf("%d rows are left, %d of %d were claimed", left, n, want)
			}
			// The clock of a new process begins above what is remembered, that of the running one goes on.
			if now := o.Clock().Last(); now <= mark {
				t.Errorf("the clock stands at %v after the restore, not above %v", now, mark)
			}
		})
	}
}

// DB-22: leases that came back end, the relays that had them settle nothing, and the cleaner's lease ends too.
func TestRestoredLeases(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, o, batch("a", 20)...)
	req := request(10)
	req.Lease = 300 * time.Millisecond
	old := claim(t, o, req)
	if _, err := o.Clean(t.Context(), "gone", time.Hour); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, backup)
	exec(t, pool, "UPDATE saved_meta SET value = value + 7200000000 WHERE name LIKE '%.cleaner'") // from a server whose clock was ahead
	for i := range old.Records {
		settle(t, o, core.Published(&old.Records[i]))
	}
	publishAll(t, o, 1)
	stage(t, pool, o, batch("b", 200)...)
	publishAll(t, o, 1)
	exec(t, pool, "BEGIN; "+restoreRows+restoreSequence+" COMMIT")
	// Another process, and the one that ran on.
	other := outboxOn(t, pool, postgres.Options{})
	got := map[string]bool{}
	eventually(t, "the messages that came back, leased ones too", func() bool {
		for _, relay := range []*postgres.Outbox{o, other} {
			for _, ids := range publishAll(t, relay, 1) {
				for _, id := range ids {
					got[id] = true
				}
			}
		}
		return len(got) == 20
	})
	if res := o.Settle(t.Context(), []core.Outcome{core.Published(&old.Records[0])}); core.ClassOf(res[0]) != core.ClassRejected {
		t.Errorf("a settle from before the restore: %v", res[0])
	}
	done, err := other.Clean(t.Context(), "new", time.Minute)
	if err != nil || !done.Elected {
		t.Errorf("nobody can clean after the restore: %+v %v", done, err)
	}
}

// DB-22: the server dies and comes back. Sequences jump, what was committed is published, the same relay goes on.
func TestCrashRecovery(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	pg, err := server.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool := openPool(t, pg.DSN)
	o := outboxOn(t, pool, postgres.Options{})
	stage(t, pool, o, batch("a", 300)...)
	req := request(100)
	req.Lease = time.Second
	held := claim(t, o, req)
	// What commits after a claim takes it to the disk.
	if _, err := pool.Exec(t.Context(), `CREATE TABLE later ()`); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if _, err := o.Claim(t.Context(), request(1)); core.ClassOf(err) != core.ClassOutage {
		t.Errorf("a claim while the server is down: %v", err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := 0
	eventually(t, "the outbox is back", func() bool { return pool.Ping(t.Context()) == nil })
	settle(t, o, core.Published(&held.Records[0])) // its lease came through
	stage(t, pool, o, batch("b", 100)...)
	eventually(t, "everything that was committed", func() bool {
		for _, ids := range publishAll(t, o, 7) {
			n += len(ids)
		}
		return n == 399
	})
}
