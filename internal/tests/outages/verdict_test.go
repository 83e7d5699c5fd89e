//go:build unix

package outages_test

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// excused is what a day may have done to messages, as docs/guarantees.md says.
type excused struct {
	// lost are messages that were at a broker which is gone: they have no effect.
	lost map[string]bool
	// forgotten: a database has gone back in time. A message that it confirmed and has lost may have had its effect
	// before.
	forgotten bool
}

// ends ends the day: producers stop, everything flows off, everybody stops. Then each message that is committed has
// exactly one effect and one mark, and nothing else has one.
func (d *day) ends(x excused) {
	d.Helper()
	for _, stop := range d.ending {
		stop()
	}
	staged := d.ids(d.out, "SELECT id FROM staged")
	if d.until("the outbox is empty", func() bool { return d.unsettled() == 0 }); d.Failed() {
		return
	}
	d.until("each message has its effect", func() bool {
		return d.count(d.in, "SELECT count(DISTINCT id) FROM seen WHERE id = ANY ($1)", keysOf(staged)) >= len(staged)-len(x.lost)
	})
	for _, stop := range d.stopAll {
		stop()
	}
	d.verify(staged, x)
}

// unsettled is how many messages are in the outbox.
func (d *day) unsettled() int {
	return d.count(d.out, "SELECT count(*) FROM waybill.waybill_outbox WHERE settled_at IS NULL")
}

func (d *day) verify(staged map[string]int, x excused) {
	d.Helper()
	seen := d.ids(d.in, "SELECT id FROM seen")
	marks := d.count(d.in, "SELECT count(*) FROM waybill.waybill_inbox")
	lost, doubled, foreign, vanished := 0, 0, 0, 0
	for id := range staged {
		switch n := seen[id]; {
		case x.lost[id] && n > 0:
			d.Errorf("%s was taken for lost and had %d effects", id, n)
		case !x.lost[id] && n == 0:
			lost++
		}
	}
	for id, n := range seen {
		if n > 1 {
			doubled++
		}
		if staged[id] == 0 && (!x.forgotten || !d.tried[id]) {
			foreign++
		}
	}
	for id := range d.answered {
		if staged[id] == 0 {
			vanished++
		}
	}
	d.Logf("%d committed, %d effects, %d lost, %d doubled, %d without a message, %d confirmed and forgotten", len(staged), len(seen), lost, doubled, foreign, vanished)
	if lost > 0 || doubled > 0 || foreign > 0 {
		d.Errorf("%d lost, %d doubled, %d without a message: want none", lost, doubled, foreign)
	}
	if vanished > 0 && !x.forgotten {
		d.Errorf("%d were confirmed to their producers and are gone", vanished)
	}
	if marks != len(seen) {
		d.Errorf("%d marks of %d effects", marks, len(seen))
	}
	if n := d.count(d.out, "SELECT count(*) FROM waybill.waybill_outbox WHERE settled_at IS NOT NULL"); n != 0 {
		d.Errorf("%d were given up", n)
	}
	if len(staged) < 50 {
		d.Errorf("only %d messages: too few to prove anything", len(staged))
	}
}

// inOrder checks that the effects of each key came in order.
func (d *day) inOrder() {
	d.Helper()
	if n := d.count(d.in, "SELECT count(*) FROM (SELECT num, lag(num) OVER (PARTITION BY key ORDER BY n) AS before FROM seen) s WHERE num < before"); n != 0 {
		d.Errorf("%d effects came out of order", n)
	}
}

// ids returns the only column of a query, with how often each value is there.
func (d *day) ids(pool *pgxpool.Pool, sql string) map[string]int {
	d.Helper()
	rows, _ := pool.Query(d.Context(), sql)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.Fatalf("%s: %v", sql, err)
	}
	n := map[string]int{}
	for _, id := range all {
		n[id]++
	}
	return n
}

func keysOf(m map[string]int) []string {
	all := make([]string, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	return all
}

// watchBlame notes what a message is blamed for: attempts and crashes. An outage costs neither.
func (d *day) watchBlame() {
	d.Helper()
	d.exec(d.out, `
CREATE TABLE blamed (why text);
CREATE FUNCTION note_blame() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO blamed VALUES (NEW.id || ': attempts ' || NEW.attempts || ', crashes ' || NEW.crashes || ': ' || NEW.last_error); RETURN NULL; END $$;
CREATE TRIGGER note_blame AFTER UPDATE ON waybill.waybill_outbox FOR EACH ROW
WHEN (NEW.attempts > OLD.attempts OR NEW.crashes > OLD.crashes) EXECUTE FUNCTION note_blame();`)
}

// nobodyWasBlamed checks that no message was blamed for an outage.
func (d *day) nobodyWasBlamed() {
	d.Helper()
	for why := range d.ids(d.out, "SELECT why FROM blamed") {
		d.Errorf("an outage counted against a message: %s", why)
	}
}
