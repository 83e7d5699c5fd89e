package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/store/postgres"
)

// A process that starts with a slow clock goes on above what the outbox remembers: its rows, and what was published.
func TestClockContinuesAfterRestart(t *testing.T) {
	t.Parallel()
	first, pool := newOutbox(t, postgres.Options{})
	var last hlc.Timestamp
	restart := func() {
		t.Helper()
		clock, err := hlc.NewClock(hlc.Options{Wall: func() time.Time { return time.Now().Add(-30 * time.Second) }})
		if err != nil {
			t.Fatal(err)
		}
		o := outboxOn(t, pool, postgres.Options{Clock: clock})
		err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := o.Stage(t.Context(), tx, message(waybill.ID(waybill.NewID()), waybill.Routes("restarted")))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if now := o.Clock().Last(); now <= last {
			t.Fatalf("stamp %s after %s", now, last)
		}
		exec(t, pool, `DELETE FROM waybill.waybill_outbox WHERE route = 'restarted'`)
	}
	stage(t, pool, first, message())
	last = first.Clock().Last()
	restart()
	c := claim(t, first, want(1))
	last = c.Records[0].Envelope.HLC
	settle(t, first, core.Published(&c.Records[0]))
	if mark, err := first.HighWater(t.Context()); err != nil || mark < last {
		t.Fatalf("mark %s below %s: %v", mark, last, err)
	}
	restart()
}

func TestAutoMigrate(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test", AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	stage(t, pool, o, message())
	if c := claim(t, o, want(1)); len(c.Records) != 1 {
		t.Fatal("nothing claimed")
	}
}
