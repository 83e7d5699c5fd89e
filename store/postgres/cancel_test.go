package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
	"github.com/waybill-go/waybill/store/postgres"
)

var errNo = errors.New("no")

// bury removes the member of o, and lets another one take its unit of route.
func bury(tb testing.TB, o *postgres.Outbox, self outbox.Session, route string) outbox.Session {
	tb.Helper()
	m := outbox.Member{Session: newSession(), Name: "heir", Beat: 1, Lease: time.Second, Serves: []outbox.Serving{{Route: route, Units: 1}}, Handlers: 1, Free: 1}
	if _, err := o.Meet(tb.Context(), outbox.Meeting{Self: m, Join: true}); err != nil {
		tb.Fatal(err)
	}
	m.Beat++
	meet := outbox.Meeting{Self: m, Remove: []outbox.Removal{{Session: self, Beat: 1}}, Moves: []outbox.Move{{Unit: outbox.Unit{Route: route, To: 64}, To: m.Session}}}
	if r, err := o.Meet(tb.Context(), meet); err != nil || len(r.Members) != 1 {
		tb.Fatal(r, err)
	}
	return m.Session
}

// ST-09: what Cancel says of a message, by what became of it, and that the owner of its key is told if it may go on.
func TestCancelStatus(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	hold := func(self outbox.Session, r *outbox.Record) {
		if taken, err := o.Take(t.Context(), self, outbox.Want{Refs: []outbox.Ref{r.Ref}}); err != nil || taken[0].Grip != outbox.Gripped {
			t.Error(taken, err)
		}
	}
	passed := func(self outbox.Session, route string) {
		move := outbox.Move{Unit: outbox.Unit{Route: route, To: 64}, From: self, To: self}
		if _, err := o.Meet(t.Context(), outbox.Meeting{Self: outbox.Member{Session: self, Beat: 9}, Moves: []outbox.Move{move}}); err != nil {
			t.Error(err)
		}
	}
	key, dedupe := core.Key("k"), core.DedupeKey("d")
	settle := func(self outbox.Session, out outbox.Outcome) { settleBy(t, o, self, out) }
	for i, tc := range []struct {
		name    string
		msg     core.Message
		prepare func(route string, self outbox.Session, r *outbox.Record)
		want    core.CancelStatus
		told    int64
	}{
		{"scheduled", message(key, core.Delay(time.Hour)), nil, core.CancelDone, 0},
		{"due, with an id of ours", message(key), nil, core.CancelInFlight, 0},
		{"due, with an id of its own", message(core.ID("a")), nil, core.CancelInFlight, 0},
		{"with a dedupe key", message(key, dedupe), nil, core.CancelDone, 1},
		{"with a dedupe key and no key", message(dedupe), nil, core.CancelDone, 0},
		{"held", message(key, dedupe), func(_ string, self outbox.Session, r *outbox.Record) { hold(self, r) }, core.CancelInFlight, 0},
		{"waits for a retry", message(key), func(_ string, self outbox.Session, r *outbox.Record) {
			settle(self, outbox.Retry(r, errNo, time.Hour))
		}, core.CancelDone, 1},
		{"a retry that is held", message(key), func(route string, self outbox.Session, r *outbox.Record) {
			settle(self, outbox.Retry(r, errNo, 0))
			if d, err := o.Due(t.Context(), self, []outbox.Part{all(route)}, 1); err != nil || len(d.Retries) != 1 {
				t.Error(d, err)
			}
		}, core.CancelInFlight, 0},
		{"sent without an answer", message(key, dedupe), func(_ string, self outbox.Session, r *outbox.Record) {
			settle(self, outbox.Release(r, 0, true))
		}, core.CancelMaybe, 1},
		{"a dead member had the unit", message(), func(route string, self outbox.Session, _ *outbox.Record) {
			bury(t, o, self, route)
		}, core.CancelMaybe, 0},
		{"and its window has passed", message(), func(route string, self outbox.Session, _ *outbox.Record) {
			passed(bury(t, o, self, route), route)
		}, core.CancelInFlight, 0},
		{"held by a dead member", message(key, dedupe), func(route string, self outbox.Session, r *outbox.Record) {
			hold(self, r)
			passed(bury(t, o, self, route), route)
		}, core.CancelMaybe, 1},
		{"a retry after a crash", message(key, dedupe), func(route string, self outbox.Session, r *outbox.Record) {
			hold(self, r)
			heir := bury(t, o, self, route)
			passed(heir, route)
			rs := read(t, o, heir, route).Ranges[0].Records
			if rs[0].Crashes != 1 {
				t.Errorf("%d crashes", rs[0].Crashes)
			}
			settle(heir, outbox.Retry(&rs[0], errNo, time.Hour))
			if n := queryInt(t, pool, "SELECT crashes FROM waybill.waybill_outbox WHERE route = $1", route); n != 0 {
				t.Errorf("%d crashes after an attempt that ended", n)
			}
		}, core.CancelMaybe, 1},
		{"abandoned", message(key), func(_ string, self outbox.Session, r *outbox.Record) {
			settle(self, outbox.Abandon(r, core.ReasonRejected, errNo))
		}, core.CancelNotFound, 0},
		{"published", message(key), func(_ string, self outbox.Session, r *outbox.Record) { settle(self, outbox.Published(r)) }, core.CancelNotFound, 0},
	} {
		route := fmt.Sprint("r", i)
		tc.msg.Routes = []string{route}
		self := join(t, o, route, 1)
		staged := stage(t, pool, o, tc.msg)
		if rs := read(t, o, self, route).Ranges[0].Records; tc.prepare != nil {
			tc.prepare(route, self, &rs[0])
		}
		got := cancel(t, pool, o, core.CancelKey{Route: route, ID: staged[0].ID})
		if got[0] != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got[0], tc.want)
		}
		if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox_control WHERE route = $1", route); n != tc.told {
			t.Errorf("%s: %d control records, want %d", tc.name, n, tc.told)
		}
		_, err := o.Meet(t.Context(), outbox.Meeting{Self: outbox.Member{Session: self}, Leave: true})
		if err != nil {
			t.Fatal(err)
		}
		exec(t, pool, "DELETE FROM waybill.waybill_outbox_members") // bury looks at who is left
	}
}

// A transaction may take back what it has staged itself, whatever that is; nobody has seen it.
func TestCancelOwn(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		staged, err := o.Stage(t.Context(), tx, message(core.Key("k")), message(core.ID("mine")), message(core.DedupeKey("d")))
		if err != nil {
			return err
		}
		for _, s := range staged {
			got, err := o.Cancel(t.Context(), tx, core.CancelKey{ID: s.ID})
			if err != nil || got[0] != core.CancelDone {
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

// What replaces a message that is held leaves that to its holder, and takes its dedupe key.
func TestReplaceHeld(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, o, message(core.ID("old"), core.DedupeKey("d")))
	c := claim(t, o, want(1))
	s := stage(t, pool, o, message(core.ID("new"), core.Replace("d")))
	if s[0].Replaced != core.CancelInFlight || s[0].Duplicate {
		t.Fatalf("%+v", s)
	}
	settle(t, o, outbox.Retry(&c.Records[0], errNo, 0))
	if c := claim(t, o, want(10)); len(c.Records) != 2 {
		t.Errorf("%d live", len(c.Records))
	}
	if s := stage(t, pool, o, message(core.DedupeKey("d"))); !s[0].Duplicate || s[0].ID != "new" {
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
					if _, err := o.Stage(t.Context(), tx, message(core.DedupeKey(fmt.Sprint(w, " ", i)))); err != nil {
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
	if n := buffers(t, pool, postgres.SQL(o, postgres.SeedSQL), []string{core.DefaultRoute}); n > 200 {
		t.Errorf("the first Stage touches %d buffers", n)
	}
	_ = old.Rollback(context.WithoutCancel(t.Context()))
}

// Messages are found by their ids, whoever made these and whatever became of the message.
func TestInspectFindsAll(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	staged := stage(t, pool, o, message(), message(core.Delay(time.Hour)), message(core.DedupeKey("d")), message(), message())
	own := stage(t, pool, o, message(core.ID("mine")))
	c := claim(t, o, want(4))
	settle(t, o, outbox.Retry(&c.Records[2], errNo, time.Hour), outbox.Abandon(&c.Records[3], core.ReasonRejected, errNo), outbox.Release(&c.Records[0], 0, false))
	states := []core.State{core.StatePending, core.StatePending, core.StateProcessing, core.StateFailed, core.StateAbandoned, core.StatePending}
	ids := make([]string, 0, len(states))
	for i, s := range append(staged, own...) {
		st, err := o.Inspect(t.Context(), core.DefaultRoute, s.ID)
		if err != nil || st.State != states[i] || string(st.Envelope.Body) != "body" {
			t.Errorf("message %d: %s, %v", i, st.State, err)
		}
		ids = append(ids, s.ID)
	}
	l, err := o.List(t.Context(), core.Filter{IDs: ids}, core.Page{})
	if err != nil || len(l.Records) != len(ids) {
		t.Errorf("%d of %d are listed, %v", len(l.Records), len(ids), err)
	}
	if _, err := o.Inspect(t.Context(), core.DefaultRoute, core.NewID()); !errors.Is(err, core.ErrNotFound) {
		t.Error(err)
	}
}

// ST-09: what is withdrawable, by its message or by its route, can be cancelled although it is due, however it is
// staged.
func TestWithdrawable(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{Withdrawable: []string{"loose"}})
	one := func(opts ...core.MessageOption) core.Staged { return stage(t, pool, o, message(opts...))[0] }
	several := stage(t, pool, o, message(core.Withdrawable()), message(), message(core.Withdrawable(), core.Delay(time.Hour)), message(core.Routes("loose", "strict")))
	mixed := stage(t, pool, o, message(core.DedupeKey("d")), message(core.Withdrawable()), message(core.ID("named")))
	for _, tc := range []struct {
		name string
		core.Staged
		want core.CancelStatus
	}{
		{"one", one(core.Withdrawable()), core.CancelDone},
		{"one with an id of its own", one(core.Withdrawable(), core.ID("own")), core.CancelDone},
		{"one of a route", one(core.Routes("loose")), core.CancelDone},
		{"one that is not", one(), core.CancelInFlight},
		{"of several", several[0], core.CancelDone},
		{"of several, one that is not", several[1], core.CancelInFlight},
		{"of several, scheduled", several[2], core.CancelDone},
		{"of several, of a route", several[3], core.CancelDone},
		{"of several, of another route", several[4], core.CancelInFlight},
		{"beside a dedupe key", mixed[1], core.CancelDone},
		{"beside a dedupe key, one that is not", mixed[2], core.CancelInFlight},
	} {
		if got := cancel(t, pool, o, core.CancelKey{Route: tc.Route, ID: tc.ID}); got[0] != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got[0], tc.want)
		}
	}
}
