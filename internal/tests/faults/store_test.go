//go:build unix && !race

package faults_test

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// owner is a member that owns a route, without a relay around it.
type owner struct {
	*world
	o    *postgres.Outbox
	self core.Member
}

// join makes o a member that owns the default route.
func (w *world) join(o *postgres.Outbox) *owner {
	w.Helper()
	m := &owner{w, o, core.Member{Session: 7, Heartbeats: 1, Name: "owner", Lease: time.Minute, Capacity: 1, FreeCapacity: 1, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}}
	move := core.Transfer{Partition: core.Partition{Route: waybill.DefaultRoute, To: core.NumSlots}, To: m.self.Session}
	for _, x := range []core.HeartbeatRequest{{Self: m.self, Join: true}, {Self: m.self, Transfers: []core.Transfer{move}}} {
		if _, err := o.Heartbeat(w.Context(), x); err != nil {
			w.Fatal(err)
		}
	}
	return m
}

// read returns the records that are ready after the sequence number from.
func (m *owner) read(from int64, limit int) []core.Record {
	m.Helper()
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	request := core.ReadRequest{Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, AfterSeq: from, UpToSeq: 1 << 60, Limit: limit}}, Bytes: 1 << 30}
	p, err := m.o.Read(m.Context(), m.self.Session, request)
	if err != nil {
		m.Fatal(err)
	}
	return p.Ranges[0].Records
}

// TestRenewalsBesideSlowSettles: renewals do not wait for settles, however many there are.
func TestRenewalsBesideSlowSettles(t *testing.T) {
	nightly(t)
	const connections, each = 16, 20
	w := newWorld(t, testenv.Postgres(t).DSN)
	pool, err := connect(t.Context(), w.dsn, connections+2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/accidents"})
	if err != nil {
		t.Fatal(err)
	}
	w.stage(keys("k", connections*each))
	w.exec(w.pool, `
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NULL; END $$;
CREATE TRIGGER slow AFTER DELETE ON waybill.waybill_outbox FOR EACH STATEMENT EXECUTE FUNCTION slow();`)
	m := w.join(o)
	records := m.read(0, connections*each)
	if len(records) != connections*each {
		t.Fatalf("%d records", len(records))
	}
	var wg sync.WaitGroup
	over := make(chan struct{})
	for part := range slices.Chunk(records, each) {
		wg.Go(func() {
			for i := range part {
				if err := o.Settle(t.Context(), m.self.Session, []core.Outcome{core.Published(&part[i])}).FirstErr(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() {
		wg.Wait()
		close(over)
	}()
	var took []time.Duration
	for settling := true; settling; {
		select {
		case <-over:
			settling = false
		default:
		}
		m.self.Heartbeats++
		began := time.Now()
		if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m.self}); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d renewals: median %s, p99 %s, longest %s", len(took), took[len(took)/2], p99, took[len(took)-1])
	if len(took) < 50 || p99 > 100*time.Millisecond {
		t.Error("renewals wait for settles")
	}
}

// TestStatementsCarriedOutLate: the answer of a settle is lost, and the server carries it out five seconds later. By
// then the member has made it again, and an operator may have put the record back. No attempt counts twice, and no key
// stays held.
func TestStatementsCarriedOutLate(t *testing.T) {
	nightly(t)
	t.Parallel()
	const late = 5 * time.Second
	for _, tc := range []struct {
		name    string
		outcome func(r *core.Record) core.Outcome
		again   bool // the member makes it again at once
		redrive bool // and the record is put back
		want    string
	}{
		{"retry, only late", func(r *core.Record) core.Outcome { return core.Retry(r, errors.New("no"), time.Hour) }, false, false, "attempts 1, state 4"},
		{"retry", func(r *core.Record) core.Outcome { return core.Retry(r, errors.New("no"), time.Hour) }, true, false, "attempts 1, state 4"},
		{"abandon", func(r *core.Record) core.Outcome {
			return core.Abandon(r, waybill.ReasonRejected, errors.New("no"))
		}, true, false, "attempts 1, state 5"},
		{"abandon, then put back", func(r *core.Record) core.Outcome {
			return core.Abandon(r, waybill.ReasonRejected, errors.New("no"))
		}, true, true, "attempts 0, state 1"},
		{"release", func(r *core.Record) core.Outcome { return core.Release(r, 0, false) }, true, false, "attempts 0, state 1"},
		{"published", core.Published, true, false, "gone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, testenv.Postgres(t).DSN)
			u, err := url.Parse(w.dsn)
			if err != nil {
				t.Fatal(err)
			}
			proxy := testenv.NewProxy(t, u.Host)
			slow, err := connect(t.Context(), proxy.URL(w.dsn)+"&application_name=slow", 1)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(slow.Close)
			behind, err := postgres.NewOutbox(slow, postgres.Options{Source: "/accidents"})
			if err != nil {
				t.Fatal(err)
			}
			id := w.stage([]string{"first", "k"})[1]
			m := w.join(behind)
			records := m.read(0, 2)
			settle := func(o *postgres.Outbox, r *core.Record) error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				return o.Settle(ctx, m.self.Session, []core.Outcome{tc.outcome(r)}).FirstErr()
			}
			if err := settle(behind, &records[0]); err != nil { // the statements are prepared now
				t.Fatal(err)
			}
			proxy.Blackhole(testenv.Up)
			proxy.Refuse() // a cancellation comes over a connection of its own
			if err := settle(behind, &records[1]); waybill.ClassOf(err) != waybill.ClassOutage {
				t.Fatalf("a statement that did not arrive: %v", err)
			}
			if tc.again {
				if err := settle(w.o, &records[1]); err != nil {
					t.Fatal(err)
				}
			}
			if tc.redrive {
				done, err := w.o.Redrive(t.Context(), admin.RedriveRequest{Filter: admin.Filter{IDs: []string{id}}})
				if err != nil || done.Changed != 1 {
					t.Fatal(done, err)
				}
			}
			w.pause(late)
			proxy.Heal()
			w.until(5*time.Second, "the late statement is carried out", func() bool {
				return w.number(w.pool, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'slow' AND datname = current_database()") == 0
			})
			got := "gone"
			if rows := list[string](w, w.pool, "SELECT 'attempts ' || attempts || ', state ' || state FROM waybill.waybill_outbox WHERE id = $1", id); len(rows) == 1 {
				got = rows[0]
			}
			if got != tc.want {
				t.Errorf("it has %s; want %s", got, tc.want)
			}
			if n := w.number(w.pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE hold <> 0"); n > 0 {
				t.Errorf("%d are held", n)
			}
		})
	}
}
