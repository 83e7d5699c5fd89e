package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

var errNo = errors.New("no")

// bury removes the member of o, and lets another one take its partition of route.
func bury(tb testing.TB, o *postgres.Outbox, self core.Session, route string) core.Session {
	tb.Helper()
	m := core.Member{Session: newSession(), Name: "heir", Heartbeats: 1, Lease: time.Second, Routes: []core.ServedRoute{{Route: route, InitialPartitions: 1}}, Capacity: 1, FreeCapacity: 1}
	if _, err := o.Heartbeat(tb.Context(), core.HeartbeatRequest{Self: m, Join: true}); err != nil {
		tb.Fatal(err)
	}
	m.Heartbeats++
	heartbeat := core.HeartbeatRequest{Self: m, Evict: []core.Eviction{{Session: self, Heartbeats: 1}}, Transfers: []core.Transfer{{Partition: core.Partition{Route: route, To: 64}, To: m.Session}}}
	if r, err := o.Heartbeat(tb.Context(), heartbeat); err != nil || len(r.Members) != 1 {
		tb.Fatal(r, err)
	}
	return m.Session
}

// ST-09: what Cancel says of a message, by what became of it, and that the owner of its key is told if it may go on.
func TestCancelStatus(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	hold := func(self core.Session, r *core.Record) {
		if taken, err := o.Hold(t.Context(), self, core.HoldRequest{Refs: []core.Ref{r.Ref}}); err != nil || taken[0].Status != core.HoldGranted {
			t.Error(taken, err)
		}
	}
	passed := func(self core.Session, route string) {
		move := core.Transfer{Partition: core.Partition{Route: route, To: 64}, From: self, To: self}
		if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: self, Heartbeats: 9}, Transfers: []core.Transfer{move}}); err != nil {
			t.Error(err)
		}
	}
	key, dedupe := waybill.Key("k"), waybill.DedupeKey("d")
	settle := func(self core.Session, out core.Outcome) { settleBy(t, o, self, out) }
	for i, tc := range []struct {
		name    string
		msg     waybill.Message
		prepare func(route string, self core.Session, r *core.Record)
		want    waybill.CancelStatus
		told    int64
	}{
		{"scheduled", message(key, waybill.Delay(time.Hour)), nil, waybill.CancelDone, 0},
		{"due, with an id of ours", message(key), nil, waybill.CancelInFlight, 0},
		{"due, with an id of its own", message(waybill.ID("a")), nil, waybill.CancelInFlight, 0},
		{"with a dedupe key", message(key, dedupe), nil, waybill.CancelDone, 1},
		{"with a dedupe key and no key", message(dedupe), nil, waybill.CancelDone, 0},
		{"held", message(key, dedupe), func(_ string, self core.Session, r *core.Record) { hold(self, r) }, waybill.CancelInFlight, 0},
		{"waits for a retry", message(key), func(_ string, self core.Session, r *core.Record) {
			settle(self, core.Retry(r, errNo, time.Hour))
		}, waybill.CancelDone, 1},
		{"a retry that is held", message(key), func(route string, self core.Session, r *core.Record) {
			settle(self, core.Retry(r, errNo, 0))
			if d, err := o.Due(t.Context(), self, []core.RouteSlots{all(route)}, 1); err != nil || len(d.Retries) != 1 {
				t.Error(d, err)
			}
		}, waybill.CancelInFlight, 0},
		{"sent without an answer", message(key, dedupe), func(_ string, self core.Session, r *core.Record) {
			settle(self, core.Release(r, 0, true))
		}, waybill.CancelUncertain, 1},
		{"a dead member had the partition", message(), func(route string, self core.Session, _ *core.Record) {
			bury(t, o, self, route)
		}, waybill.CancelUncertain, 0},
		{"and its window has passed", message(), func(route string, self core.Session, _ *core.Record) {
			passed(bury(t, o, self, route), route)
		}, waybill.CancelInFlight, 0},
		{"held by a dead member", message(key, dedupe), func(route string, self core.Session, r *core.Record) {
			hold(self, r)
			passed(bury(t, o, self, route), route)
		}, waybill.CancelUncertain, 1},
		{"a retry after a crash", message(key, dedupe), func(route string, self core.Session, r *core.Record) {
			hold(self, r)
			heir := bury(t, o, self, route)
			passed(heir, route)
			rs := read(t, o, heir, route).Ranges[0].Records
			if rs[0].Crashes != 1 {
				t.Errorf("%d crashes", rs[0].Crashes)
			}
			settle(heir, core.Retry(&rs[0], errNo, time.Hour))
			if n := queryInt(t, pool, "SELECT crashes FROM waybill.waybill_outbox WHERE route = $1", route); n != 0 {
				t.Errorf("%d crashes after an attempt that ended", n)
			}
		}, waybill.CancelUncertain, 1},
		{"abandoned", message(key), func(_ string, self core.Session, r *core.Record) {
			settle(self, core.Abandon(r, waybill.ReasonRejected, errNo))
		}, waybill.CancelNotFound, 0},
		{"published", message(key), func(_ string, self core.Session, r *core.Record) { settle(self, core.Published(r)) }, waybill.CancelNotFound, 0},
	} {
		route := fmt.Sprint("r", i)
		tc.msg.Routes = []string{route}
		self := join(t, o, route, 1)
		staged := stage(t, pool, o, tc.msg)
		if rs := read(t, o, self, route).Ranges[0].Records; tc.prepare != nil {
			tc.prepare(route, self, &rs[0])
		}
		got := cancel(t, pool, o, waybill.CancelKey{Route: route, ID: staged[0].ID})
		if got[0] != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got[0], tc.want)
		}
		if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox_notices WHERE route = $1", route); n != tc.told {
			t.Errorf("%s: %d notices, want %d", tc.name, n, tc.told)
		}
		_, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: self}, Leave: true})
		if err != nil {
			t.Fatal(err)
		}
		exec(t, pool, "DELETE FROM waybill.waybill_outbox_members") // bury looks at who is left
	}
}

// ST-09: a message in flight that the transaction has tried to replace stays in flight for it: with a hold of any
// member, or out without a hold, as one that a trigger has made unlike others.
func TestCancelOfWhatCouldNotBeReplaced(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	dedupe := waybill.DedupeKey("d")
	for i, held := range []bool{true, false} {
		route := fmt.Sprint("r", i)
		self := join(t, o, route, 1)
		old := message(dedupe)
		old.Routes = []string{route}
		staged := stage(t, pool, o, old)
		if rs := read(t, o, self, route).Ranges[0].Records; held {
			if taken, err := o.Hold(t.Context(), self, core.HoldRequest{Refs: []core.Ref{rs[0].Ref}}); err != nil || taken[0].Status != core.HoldGranted {
				t.Fatal(taken, err)
			}
		} else {
			exec(t, pool, "UPDATE waybill.waybill_outbox SET cancellable = false WHERE route = $1", route)
		}
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			next := message(waybill.Replace("d"))
			next.Routes = []string{route}
			if _, err := o.Stage(t.Context(), tx, next); err != nil {
				return err
			}
			got, err := o.Cancel(t.Context(), tx, waybill.CancelKey{Route: route, ID: staged[0].ID})
			if err == nil && got[0] != waybill.CancelInFlight {
				t.Errorf("held: %t: %q, want in flight", held, got[0])
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A transaction may take back any message that it has staged itself; no relay has seen it.
func TestCancelOwn(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		staged, err := o.Stage(t.Context(), tx, message(waybill.Key("k")), message(waybill.ID("mine")), message(waybill.DedupeKey("d")))
		if err != nil {
			return err
		}
		for _, s := range staged {
			got, err := o.Cancel(t.Context(), tx, waybill.CancelKey{ID: s.ID})
			if err != nil || got[0] != waybill.CancelDone {
				t.Errorf("%s: %v, %v", s.ID, got, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A replacement of a held message leaves that one to its holder, and takes its dedupe key.
func TestReplaceHeld(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, o, message(waybill.ID("old"), waybill.DedupeKey("d")))
	c := holdNext(t, o, want(1))
	s := stage(t, pool, o, message(waybill.ID("new"), waybill.Replace("d")))
	if s[0].Replaced != waybill.CancelInFlight || s[0].Duplicate {
		t.Fatalf("%+v", s)
	}
	settle(t, o, core.Retry(&c.Records[0], errNo, 0))
	if c := holdNext(t, o, want(10)); len(c.Records) != 2 {
		t.Errorf("%d live", len(c.Records))
	}
	if s := stage(t, pool, o, message(waybill.DedupeKey("d"))); !s[0].Duplicate || s[0].ID != "new" {
		t.Errorf("%+v", s)
	}
}

// Callers under SERIALIZABLE that stage with dedupe keys do not fail each other (postgres.md A9).
func TestSerializableCallers(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	if err := o.Seed(t.Context()); err != nil {
		t.Fatal(err)
	}
	const each = 50
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := 0
	for w := range 4 {
		wg.Go(func() {
			for i := range each {
				err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
					if _, err := o.Stage(t.Context(), tx, message(waybill.DedupeKey(fmt.Sprint(w, " ", i)))); err != nil {
						return err
					}
					_, err := tx.Exec(t.Context(), "SELECT pg_sleep(0.002)")
					return err
				})
				if err != nil {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if failed > 0 {
		t.Errorf("%d of %d transactions failed", failed, 4*each)
	}
}

// The first Stage reads a bounded number of pages, also over rows that are dead and cannot be removed (postgres.md A5).
func TestFirstStageIsBounded(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	old := begin(t, pool, "SELECT pg_current_xact_id()") // its snapshot keeps dead rows
	exec(t, pool, "INSERT INTO waybill.waybill_outbox (topic, body, own_id) SELECT 't', 'body', false FROM generate_series(1, 50000)")
	exec(t, pool, "DELETE FROM waybill.waybill_outbox")
	if n, _ := buffers(t, pool, postgres.SQL(o, postgres.SeedSQL), []string{waybill.DefaultRoute}); n > 200 {
		t.Errorf("the first Stage touches %d buffers", n)
	}
	_ = old.Rollback(context.WithoutCancel(t.Context()))
}

// Messages are found by their ids, those of programs and those of Waybill, in every state of the message.
func TestInspectFindsAll(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	staged := stage(t, pool, o, message(), message(waybill.Delay(time.Hour)), message(waybill.DedupeKey("d")), message(), message())
	own := stage(t, pool, o, message(waybill.ID("mine")))
	c := holdNext(t, o, want(4))
	settle(t, o, core.Retry(&c.Records[2], errNo, time.Hour), core.Abandon(&c.Records[3], waybill.ReasonRejected, errNo), core.Release(&c.Records[0], 0, false))
	states := []core.State{core.StatePending, core.StatePending, core.StateProcessing, core.StateFailed, core.StateAbandoned, core.StatePending}
	ids := make([]string, 0, len(states))
	for i, s := range append(staged, own...) {
		st, err := o.Inspect(t.Context(), waybill.DefaultRoute, s.ID)
		if err != nil || st.State != states[i] || string(st.Envelope.Body) != "body" {
			t.Errorf("message %d: %s, %v", i, st.State, err)
		}
		ids = append(ids, s.ID)
	}
	l, err := o.List(t.Context(), admin.Filter{IDs: ids}, admin.PageRequest{})
	if err != nil || len(l.Records) != len(ids) {
		t.Errorf("%d of %d are listed, %v", len(l.Records), len(ids), err)
	}
	if _, err := o.Inspect(t.Context(), waybill.DefaultRoute, waybill.NewID()); !errors.Is(err, waybill.ErrNotFound) {
		t.Error(err)
	}
}

// ST-09: a message that is cancellable, by itself or by its route, can be cancelled although it is due, by every way
// to stage.
func TestCancellable(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{Cancellable: []string{"loose"}})
	one := func(opts ...waybill.MessageOption) waybill.Staged { return stage(t, pool, o, message(opts...))[0] }
	several := stage(t, pool, o, message(waybill.Cancellable()), message(), message(waybill.Cancellable(), waybill.Delay(time.Hour)), message(waybill.Routes("loose", "strict")))
	mixed := stage(t, pool, o, message(waybill.DedupeKey("d")), message(waybill.Cancellable()), message(waybill.ID("named")))
	for _, tc := range []struct {
		name string
		waybill.Staged
		want waybill.CancelStatus
	}{
		{"one", one(waybill.Cancellable()), waybill.CancelDone},
		{"one with an id of its own", one(waybill.Cancellable(), waybill.ID("own")), waybill.CancelDone},
		{"one of a route", one(waybill.Routes("loose")), waybill.CancelDone},
		{"one that is not", one(), waybill.CancelInFlight},
		{"of several", several[0], waybill.CancelDone},
		{"of several, one that is not", several[1], waybill.CancelInFlight},
		{"of several, scheduled", several[2], waybill.CancelDone},
		{"of several, of a route", several[3], waybill.CancelDone},
		{"of several, of another route", several[4], waybill.CancelInFlight},
		{"beside a dedupe key", mixed[1], waybill.CancelDone},
		{"beside a dedupe key, one that is not", mixed[2], waybill.CancelInFlight},
	} {
		if got := cancel(t, pool, o, waybill.CancelKey{Route: tc.Route, ID: tc.ID}); got[0] != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got[0], tc.want)
		}
	}
}
