package postgres_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// OR-02: a schedule that came due while another transaction has its row holds its key, and no other key. The transaction may be the claim of
// another relay that puts it in line, of one that was killed as well, or a cancellation.
func TestLockedScheduleHoldsItsKey(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, o, message(core.ID("head"), core.Key("k")), message(core.ID("schedule"), core.Key("k"), core.Delay(time.Millisecond)))
	eventually(t, "the schedule comes due", func() bool {
		var due bool
		if err := pool.QueryRow(t.Context(), "SELECT due_at < clock_timestamp() FROM waybill.waybill_outbox WHERE id = 'schedule'").Scan(&due); err != nil {
			t.Fatal(err)
		}
		return due
	})
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := other.Exec(t.Context(), "UPDATE waybill.waybill_outbox SET due_at = NULL, holds = true WHERE id = 'schedule'"); err != nil {
		t.Fatal(err)
	}
	stage(t, pool, o, message(core.ID("later"), core.Key("k")), message(core.ID("other"), core.Key("j")))
	var got []string
	take := func() {
		t.Helper()
		for _, r := range claim(t, o, request(10)).Records {
			if r.Envelope.Key == "k" {
				got = append(got, r.Envelope.ID)
			} else {
				got = append(got, "("+r.Envelope.ID+")")
			}
			settle(t, o, core.Published(&r))
		}
	}
	for range 10 {
		take()
	}
	if !slices.Equal(got, []string{"(other)"}) {
		t.Fatalf("%v came while the schedule was locked", got)
	}
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key goes on", func() bool {
		take()
		return len(got) == 4
	})
	if want := []string{"(other)", "head", "schedule", "later"}; !slices.Equal(got, want) {
		t.Errorf("they came in the order %v, want %v", got, want)
	}
}

// OR-02: what came due during an outage is put in line in few steps, and drains in its order.
func TestManyDueDrain(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	const due, later = 8000, 1000
	fill := func(from, to int, key, at string) {
		t.Helper()
		exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, id, key, due_at)
			SELECT 't', 'x', lpad(i::text, 9, '0'), `+key+`, `+at+` FROM generate_series($1::int, $2::int) i`, from, to)
	}
	fill(1, due, "'k' || i % 2", "now() - interval '1 hour' + i * interval '1 ms'")
	fill(due+1, due+later, "'k' || i % 2", "NULL::timestamptz")
	req := request(500)
	req.Session = 7
	last := map[string]string{}
	claims := 0
	for n := 0; n < due+later; claims++ {
		if claims > 1000 {
			t.Fatalf("%d of %d after %d claims", n, due+later, claims)
		}
		c, err := o.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]core.Outcome, len(c.Records))
		for i := range c.Records {
			e := &c.Records[i].Envelope
			if e.ID <= last[e.Key] {
				t.Fatalf("%s of key %s came after %s", e.ID, e.Key, last[e.Key])
			}
			last[e.Key] = e.ID
			out[i] = core.Published(&c.Records[i])
		}
		n += len(out)
		if len(out) > 0 {
			settle(t, o, out...)
		}
	}
}
