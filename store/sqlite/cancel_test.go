package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

const route = waybill.DefaultRoute

var errNo = errors.New("no")

// in runs fn in a transaction of the application.
func in(tb testing.TB, s *Store, fn func(ctx context.Context, tx *sql.Tx) error) {
	tb.Helper()
	tx, err := s.DB().BeginTx(tb.Context(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(tb.Context(), tx); err != nil {
		tb.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		tb.Fatal(err)
	}
}

func cancel(tb testing.TB, s *Store, key waybill.CancelKey) waybill.CancelStatus {
	tb.Helper()
	var got []waybill.CancelStatus
	in(tb, s, func(ctx context.Context, tx *sql.Tx) (err error) {
		got, err = s.Cancel(ctx, tx, key)
		return err
	})
	return got[0]
}

// bury makes by remove dead and own what it owned.
func bury(tb testing.TB, s *Store, by, dead *core.Member) {
	tb.Helper()
	by.Heartbeats++
	m := core.HeartbeatRequest{Self: *by, Evict: []core.Eviction{{Session: dead.Session, Heartbeats: dead.Heartbeats}}}
	for _, u := range heartbeat(tb, s, m).Partitions {
		if u.Owner == 0 {
			m.Transfers = append(m.Transfers, core.Transfer{Partition: u.Partition, To: by.Session})
		}
	}
	m.Evict = nil
	heartbeat(tb, s, m)
}

// pass says that a window has passed all.
func pass(tb testing.TB, s *Store, by *core.Member) {
	tb.Helper()
	m := core.HeartbeatRequest{Self: *by}
	for _, u := range heartbeat(tb, s, m).Partitions {
		m.Transfers = append(m.Transfers, core.Transfer{Partition: u.Partition, From: by.Session, To: by.Session})
	}
	heartbeat(tb, s, m)
}

func hold(tb testing.TB, s *Store, self core.Session, r *core.Record) {
	tb.Helper()
	got, err := s.Hold(tb.Context(), self, core.HoldRequest{Refs: []core.Ref{r.Ref}})
	if err != nil || got[0].Status != core.HoldGranted {
		tb.Fatal(got, err)
	}
}

func dueNow(tb testing.TB, s *Store, self core.Session) core.DueResult {
	tb.Helper()
	p, err := s.Due(tb.Context(), self, []core.RouteSlots{all(route)}, 10)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// ST-09: which messages can be cancelled, and which notices the owner of the key gets.
func TestCancel(t *testing.T) {
	t.Parallel()
	type world struct {
		*Store
		t        *testing.T
		one, two core.Member
	}
	retry := func(w *world, in time.Duration) {
		settle(w.t, w.Store, w.one.Session, core.Retry(get(w.t, w.Store, w.one.Session, route, "a"), errNo, in))
	}
	for name, tc := range map[string]struct {
		msg     waybill.Message
		opts    Options
		prepare func(w *world)
		want    waybill.CancelStatus
		notice  int
	}{
		"scheduled":           {raw("a", "x", waybill.Delay(time.Hour)), Options{}, nil, waybill.CancelDone, 0},
		"due":                 {raw("a", "x"), Options{}, nil, waybill.CancelInFlight, 0},
		"with a dedupe key":   {raw("a", "x", waybill.DedupeKey("d")), Options{}, nil, waybill.CancelDone, 1},
		"cancellable":         {raw("a", "x"), Options{Cancellable: []string{route}}, nil, waybill.CancelDone, 1},
		"cancellable, no key": {raw("a", "", waybill.DedupeKey("d")), Options{}, nil, waybill.CancelDone, 0},
		"held": {raw("a", "x", waybill.DedupeKey("d")), Options{}, func(w *world) {
			hold(w.t, w.Store, w.one.Session, get(w.t, w.Store, w.one.Session, route, "a"))
		}, waybill.CancelInFlight, 0},
		"waits for a retry": {raw("a", "x"), Options{}, func(w *world) { retry(w, time.Hour) }, waybill.CancelDone, 1},
		"retry that is held": {raw("a", "x"), Options{}, func(w *world) {
			retry(w, 0)
			dueNow(w.t, w.Store, w.one.Session)
		}, waybill.CancelInFlight, 0},
		"sent without an answer": {raw("a", "x", waybill.DedupeKey("d")), Options{}, func(w *world) {
			settle(w.t, w.Store, w.one.Session, core.Release(get(w.t, w.Store, w.one.Session, route, "a"), 0, true))
		}, waybill.CancelUncertain, 1},
		"held by a dead one": {raw("a", "x"), Options{}, func(w *world) {
			hold(w.t, w.Store, w.one.Session, get(w.t, w.Store, w.one.Session, route, "a"))
			bury(w.t, w.Store, &w.two, &w.one)
			pass(w.t, w.Store, &w.two)
		}, waybill.CancelUncertain, 1},
		"a dead one had the partition": {
			raw("a", "x"),
			Options{},
			func(w *world) { bury(w.t, w.Store, &w.two, &w.one) },
			waybill.CancelUncertain, 1,
		},
		"retry of a dead one's partition": {raw("a", "x"), Options{}, func(w *world) {
			retry(w, 0)
			bury(w.t, w.Store, &w.two, &w.one)
		}, waybill.CancelUncertain, 1},
		"scheduled in a dead one's partition": {
			raw("a", "x", waybill.Delay(time.Hour)),
			Options{},
			func(w *world) { bury(w.t, w.Store, &w.two, &w.one) }, waybill.CancelDone, 0,
		},
		"a window has passed it": {raw("a", "x"), Options{}, func(w *world) {
			bury(w.t, w.Store, &w.two, &w.one)
			pass(w.t, w.Store, &w.two)
		}, waybill.CancelInFlight, 0},
		"the dead one's partitions are gone": {raw("a", "x"), Options{}, func(w *world) {
			heartbeat(w.t, w.Store, core.HeartbeatRequest{Self: w.two, Leave: true})
			other := join(w.t, w.Store)
			bury(w.t, w.Store, &other, &w.one)
			w.two = join(w.t, w.Store)
		}, waybill.CancelUncertain, 1},
		"abandoned": {raw("a", "x"), Options{}, func(w *world) {
			settle(w.t, w.Store, w.one.Session, core.Abandon(get(w.t, w.Store, w.one.Session, route, "a"), waybill.ReasonRejected, nil))
		}, waybill.CancelNotFound, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, tc.opts)
			w := &world{Store: s, t: t, one: join(t, s, route)}
			w.two = join(t, s, route)
			bury(t, s, &w.one, &core.Member{}) // nobody: it takes what is free
			m := core.HeartbeatRequest{Self: w.one}
			for _, u := range heartbeat(t, s, m).Partitions {
				m.Transfers = append(m.Transfers, core.Transfer{Partition: u.Partition, From: u.Owner, To: w.one.Session})
			}
			heartbeat(t, s, m)
			stage(t, s, tc.msg)
			if tc.prepare != nil {
				tc.prepare(w)
			}
			if got := cancel(t, s, waybill.CancelKey{ID: "a"}); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
			if n := len(page(t, s, w.two.Session, route).Notices); n != tc.notice {
				t.Errorf("%d notices, want %d", n, tc.notice)
			}
			_, err := s.Inspect(t.Context(), route, "a")
			if gone := tc.want == waybill.CancelDone || tc.want == waybill.CancelUncertain; errors.Is(err, waybill.ErrNotFound) != gone {
				t.Errorf("stored: %v", err)
			}
		})
	}
}

// ST-10: a held message cannot be replaced: it gives its dedupe key up, and both live.
func TestReplace(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	self := join(t, s, route).Session
	stage(t, s, raw("a", "x", waybill.DedupeKey("d")), raw("b", "x"))
	replace := func(id string, want waybill.CancelStatus) {
		t.Helper()
		if got := stage(t, s, raw(id, "x", waybill.Replace("d")))[0]; got.Replaced != want || got.Duplicate {
			t.Errorf("%s: %+v, want %v", id, got, want)
		}
	}
	replace("c", waybill.CancelDone)
	if got := ids(read(t, s, self, route)); got != "b c " {
		t.Errorf("ready: %s", got)
	}
	if cs := page(t, s, self, route).Notices; len(cs) != 1 || cs[0].Kind != core.NoticeKey || cs[0].Key != "x" {
		t.Errorf("notices: %+v", cs)
	}
	hold(t, s, self, get(t, s, self, route, "c"))
	replace("e", waybill.CancelInFlight)
	if got := ids(read(t, s, self, route)); got != "b c e " {
		t.Errorf("ready: %s", got)
	}
	if got := stage(t, s, raw("f", "", waybill.DedupeKey("d")))[0]; !got.Duplicate || got.ID != "e" {
		t.Errorf("%+v", got)
	}
	settle(t, s, self, core.Published(get(t, s, self, route, "e")))
	if got := stage(t, s, raw("f", "", waybill.DedupeKey("d")))[0]; got.Duplicate {
		t.Errorf("%+v", got)
	}
}

// ST-09 ST-10 DB-09: with a retention, a cancelled record stays with its reason, and is neither live nor in the way.
func TestCancelledAreKeptOnRequest(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Retention: waybill.Retention{Cancelled: time.Hour}})
	self := join(t, s, route).Session
	stage(t, s, raw("a", "o", waybill.DedupeKey("k")), raw("b", "o", waybill.DedupeKey("l")), raw("c", "o"))
	if got := stage(t, s, raw("d", "", waybill.Replace("k")))[0]; got.Replaced != waybill.CancelDone {
		t.Errorf("%+v", got)
	}
	if got := cancel(t, s, waybill.CancelKey{Topic: "orders.placed", DedupeKey: "l"}); got != waybill.CancelDone {
		t.Error(got)
	}
	for id, reason := range map[string]waybill.Reason{"a": waybill.ReasonReplaced, "b": waybill.ReasonCancelled} {
		if st, err := s.Inspect(t.Context(), route, id); err != nil || st.State != core.StateAbandoned || st.Reason != reason ||
			st.SettledAt.IsZero() {
			t.Errorf("%+v %v", st, err)
		}
	}
	p := page(t, s, self, route)
	if got := ids(p.Ranges[0].Records); got != "c d " || len(p.Blocking) > 0 {
		t.Errorf("ready: %s, waiting %v", got, p.Blocking)
	}
	if got := stage(t, s, raw("b", ""))[0]; !got.Duplicate {
		t.Error("the id of a cancelled message that is kept is no duplicate")
	}
}

// ST-09: a transaction that is none is refused with what to do.
func TestCancelNeedsTransaction(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	if _, err := s.Cancel(t.Context(), nil, waybill.CancelKey{ID: "x"}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("without a transaction: %v", err)
	}
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = tx.Rollback()
	if _, err := s.Cancel(t.Context(), tx, waybill.CancelKey{ID: "x"}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("in an ended transaction: %v", err)
	}
	if _, err := s.Stage(t.Context(), tx, waybill.RawMessage("t", "", nil, waybill.Replace("k"))); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("stage in an ended transaction: %v", err)
	}
}

// Several routes of one message, and a unit of work.
func TestUnitOfWork(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	u, err := waybill.NewUnitOfWork(s, func(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
		tx, err := s.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		t.Fatal(err)
	}
	work := func(fail error, id string) error {
		return u.Do(t.Context(), func(ctx context.Context, _ *sql.Tx) error {
			return errors.Join(u.Stage(ctx, raw(id, "k", waybill.Routes(route, "other"))), fail)
		})
	}
	if err := errors.Join(work(nil, "a"), work(nil, "a")); err != nil {
		t.Fatal(err)
	}
	if err := work(errNo, "b"); !errors.Is(err, errNo) {
		t.Fatal(err)
	}
	self := join(t, s, route, "other").Session
	for _, r := range []string{route, "other"} {
		if got := ids(read(t, s, self, r)); got != "a " {
			t.Errorf("%s: %s", r, got)
		}
	}
}
