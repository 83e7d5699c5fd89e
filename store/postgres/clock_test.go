package postgres_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/store/postgres"
)

// A process that starts with a slow clock goes on above the stamps that the outbox remembers: those of its rows, and of
// published records.
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
	c := holdNext(t, first, want(1))
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
	if c := holdNext(t, o, want(1)); len(c.Records) != 1 {
		t.Fatal("nothing held")
	}
}

// A stamp that is too far ahead, such as that of a machine with a fast clock, stops no staging: neither while its row
// is there, nor when it was published. The clock of a new process goes on above the other stamps, and says so.
func TestStampTooFarAheadStopsNoStaging(t *testing.T) { // SE-06
	t.Parallel()
	for name, ahead := range map[string]hlc.Timestamp{
		"an hour":                  hlc.Timestamp(time.Now().Add(time.Hour).UnixMilli() << 16),
		"the end of time":          hlc.MaxTimestamp,
		"behind the end of clocks": hlc.MaxTimestamp - 1<<40,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, pool := newOutbox(t, postgres.Options{})
			stage(t, pool, first, message(waybill.Key("k")))
			last := first.Clock().Last()
			far := message(waybill.Key("k"))
			far.HLC = ahead
			stage(t, pool, first, far)
			restart := func(when string) {
				t.Helper()
				var log bytes.Buffer
				o := outboxOn(t, pool, postgres.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				before := time.Now()
				stage(t, pool, o, message(waybill.Key("k")))
				if now := o.Clock().Last(); now <= last || now.Time().After(before.Add(2*hlc.DefaultMaxDrift)) {
					t.Errorf("%s: stamp %s (%s), after %s", when, now, now.Time(), last)
				}
				last = o.Clock().Last()
				if when == "staged" && !strings.Contains(log.String(), "event=postgres.stamp_ahead") {
					t.Errorf("%s: nobody was told:\n%s", when, &log)
				}
			}
			restart("staged")
			c := holdNext(t, first, want(10))
			var done []core.Outcome
			for i := range c.Records {
				done = append(done, core.Published(&c.Records[i]))
			}
			settle(t, first, done...)
			restart("published")
		})
	}
}

// A machine whose clock is slow by more than the bound stages all the same, as near to the mark as it may, and says so.
func TestSlowClockStages(t *testing.T) {
	t.Parallel()
	first, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, first, message())
	slow := func() time.Time { return time.Now().Add(-time.Hour) }
	clock, err := hlc.NewClock(hlc.Options{Wall: slow})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	o := outboxOn(t, pool, postgres.Options{Clock: clock, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	before := slow()
	if err := o.Seed(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := clock.Last()
	stage(t, pool, o, message())
	if now := clock.Last(); now <= last || last.Time().Before(before.Add(hlc.DefaultMaxDrift-time.Millisecond)) {
		t.Errorf("stamps %s, %s; want them to rise, from about %s on", last.Time(), now.Time(), before.Add(hlc.DefaultMaxDrift))
	}
	if n := strings.Count(log.String(), "event=postgres.stamp_ahead"); n != 1 {
		t.Errorf("told %d times, want once:\n%s", n, &log)
	}
}

// A mark that is too far ahead itself, as after the database's clock was set back, is lowered by the next settle.
func TestMarkTooFarAheadHeals(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{Logger: slog.New(slog.DiscardHandler)})
	exec(t, pool, `UPDATE waybill.waybill_meta SET value = $1 WHERE name = 'waybill_outbox.hlc'`, int64(hlc.MaxTimestamp))
	stage(t, pool, o, message())
	c := holdNext(t, o, want(1))
	settle(t, o, core.Published(&c.Records[0]))
	mark := hlc.Timestamp(queryInt(t, pool, `SELECT value FROM waybill.waybill_meta WHERE name = 'waybill_outbox.hlc'`))
	if mark != c.Records[0].Envelope.HLC {
		t.Errorf("the mark is %s (%s), want that of the message, %s", mark, mark.Time(), c.Records[0].Envelope.HLC)
	}
}
