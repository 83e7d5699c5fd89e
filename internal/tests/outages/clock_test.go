//go:build unix

package outages_test

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// OP-17: the database's clock jumps an hour ahead, back, an hour behind, and back. The relay and consumers with the
// inbox go on, on RabbitMQ and on the table.
func TestDatabaseClockIsWrong(t *testing.T) {
	nightly(t)
	t.Parallel()
	for _, role := range []string{consumes, receives} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			pg := testenv.OwnPostgres(t, testenv.PostgresOptions{Clock: true})
			d := onRabbitMQ(t, member{DSN: pg.DSN("postgres"), Role: role})
			d.start(role)
			if role == consumes {
				d.start(relays)
			}
			d.produce(2)
			for range times() {
				for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
					if err := pg.SetClock(ahead); err != nil {
						t.Fatal(err)
					}
					d.until("the server has noticed", func() bool {
						off := d.count(d.out, "SELECT abs(extract(epoch FROM clock_timestamp() - $1::timestamptz))::int", time.Now().Add(ahead))
						return off >= 0 && off < 30
					})
					d.flows("messages flow", 50)
				}
			}
			d.ends(excused{})
			d.nobodyWasBlamed()
		})
	}
}

// OP-17 P6: the clock of a producer is an hour off, that of its stamps too. A message that is due at once is delivered
// at once, since the database's clock decides. A stamp from the future is refused by the consumer's clock, and the
// message is handled all the same.
func TestProducerClockIsWrong(t *testing.T) {
	nightly(t)
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := func() time.Time { return time.Now().Add(off) }
			stamps, err := hlc.NewClock(hlc.Options{Wall: now})
			if err != nil {
				t.Fatal(err)
			}
			d := onRabbitMQ(t, member{clock: new(hlc.Clock)})
			if d.o, err = postgres.NewOutbox(d.out, postgres.Options{Source: "/badday", Now: now, Clock: stamps, Logger: d.base.logger}); err != nil {
				t.Fatal(err)
			}
			d.start(consumes)
			d.start(relays)
			d.produce(2)
			d.flows("messages flow", 50)
			d.ends(excused{})
			d.nobodyWasBlamed()
			if refused := d.base.clock.Rejected() > 0; refused != (off > 0) {
				t.Errorf("stamps were refused: %t", refused)
			}
			if d.base.clock.Ahead() > time.Minute {
				t.Errorf("the consumer's clock is %s ahead", d.base.clock.Ahead())
			}
		})
	}
}
