//go:build unix

package outages_test

import (
	"fmt"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
)

// endsIdle makes the database end the transactions of processes that stand still, as docs/operating.md advises: they
// hold the marks of the messages that they handle.
const endsIdle = "&options=-c%20idle_in_transaction_session_timeout%3D2s"

// crew are consumers in processes of their own.
func (d *day) crew(role string, n int) []*sharedtest.Process {
	d.Helper()
	all := make([]*sharedtest.Process, n)
	for i := range all {
		all[i] = d.process(role, fmt.Sprintf("%c", 'a'+i))
	}
	return all
}

// handledBy is how many effects a process had.
func (d *day) handledBy(p *sharedtest.Process) int {
	return d.count(d.in, "SELECT count(*) FROM seen WHERE pid = $1", p.PID)
}

// handles waits until a process has n effects more.
func (d *day) handles(what string, p *sharedtest.Process, n int) {
	d.Helper()
	before := d.handledBy(p)
	d.until(what, func() bool { return d.handledBy(p) >= before+n })
}

// OP-17: a consumer freezes in the middle of its handlers, for longer than its lease or the broker's patience. Others
// take over its deliveries. When it goes on, none of them has a second effect, and it works again.
func TestFrozenConsumer(t *testing.T) {
	nightly(t)
	t.Parallel()
	for name, tc := range map[string]struct{ role, options string }{
		"consumer":                              {consumes, endsIdle},
		"table consumer":                        {receives, endsIdle},
		"consumer, its transactions stay":       {consumes, ""},
		"table consumer, its transactions stay": {receives, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			role := tc.role
			d := onRabbitMQ(t, member{Role: role, DSN: testenv.Postgres(t).DSN + tc.options, Slow: 30 * time.Millisecond})
			crew := d.crew(role, 2)
			if role == consumes {
				d.start(relays)
			}
			d.produce(1)
			for range times() {
				for _, p := range crew {
					d.handles("both handle", p, 10)
				}
				frozen, other := crew[0], crew[1]
				d.until("both are listed", func() bool { return d.alive(role) == len(crew) })
				d.until("it freezes in the middle of handlers", func() bool {
					frozen.Signal(syscall.SIGSTOP)
					d.pause(500 * time.Millisecond)
					if d.count(d.in, stuck, programName(frozen.PID)) > 0 {
						return true
					}
					frozen.Signal(syscall.SIGCONT)
					return false
				})
				d.until("it is given up", func() bool { return d.alive(role) == len(crew)-1 })
				if tc.options == "" {
					d.until("the other one waits for a mark", func() bool { return d.count(d.in, waits) > 0 })
				} else {
					d.handles("the other one goes on", other, 50)
				}
				frozen.Signal(syscall.SIGCONT)
				d.handles("it works again", frozen, 10)
			}
			d.ends(excused{})
		})
	}
}

// waits counts the statements that wait for a transaction to end.
const waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'"

// stuck counts the transactions of a process that were idle for longer than a handler takes. On a busy machine those of
// another one can be.
const stuck = `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1 AND state = 'idle in transaction' AND state_change < clock_timestamp() - interval '300 ms'`

// alive is how many consumers the outbox or the broker sees; -1 while there is no answer.
func (d *day) alive(role string) int {
	if role == receives {
		return d.count(d.out, "SELECT count(*) FROM waybill.waybill_outbox_members")
	}
	var q struct {
		Consumers int `json:"consumers"`
	}
	if err := d.mq.Do(d.Context(), http.MethodGet, "/api/queues/"+url.PathEscape(d.mq.VHost)+"/"+queueName, nil, &q); err != nil {
		return -1
	}
	return q.Consumers
}

// OP-17 OR-09: the only active consumer of a queue is killed, then the next one freezes. Each time another one gets the
// queue, and each key's effects come in order.
func TestSingleActiveConsumerFailsOver(t *testing.T) {
	nightly(t)
	t.Parallel()
	d := onRabbitMQ(t, member{InOrder: true, DSN: testenv.Postgres(t).DSN + endsIdle, Slow: 5 * time.Millisecond})
	d.declare()
	crew := d.crew(consumes, 3)
	d.start(relays)
	d.produce(2)
	for range times() {
		for _, misfortune := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			d.flows("messages flow", 50)
			active := d.active(crew)
			crew[active].Signal(misfortune)
			d.until("another one gets the queue", func() bool { return d.active(crew) != active })
			d.flows("messages flow", 50)
			if misfortune == syscall.SIGKILL {
				<-crew[active].Done
				crew[active] = d.process(consumes, "again")
			} else {
				crew[active].Signal(syscall.SIGCONT)
			}
		}
	}
	d.ends(excused{})
	d.inOrder()
}

// active returns which process had the latest effect.
func (d *day) active(crew []*sharedtest.Process) int {
	pid := d.count(d.in, "SELECT pid FROM seen ORDER BY n DESC LIMIT 1")
	for i, p := range crew {
		if p.PID == pid {
			return i
		}
	}
	return -1
}
