package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// reasonOf returns why a message was abandoned, "" if it was not, and "gone".
func reasonOf(tb testing.TB, pool *pgxpool.Pool, id string) string {
	tb.Helper()
	return query[string](tb, pool, "SELECT coalesce((SELECT reason FROM waybill.waybill_outbox WHERE id = $1), 'gone')", id)
}

func skip(ctx context.Context, o *postgres.Outbox, key, id string) error {
	return o.DecideHead(ctx, waybill.DefaultRoute, key, id, admin.HeadSkip)
}

// OP-18 OR-05: a due record without an owner is decided about at once, if it is the first of its key.
func TestDecideWithoutAnOwner(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name       string
		partitions bool // there are partitions, which nobody owns
	}{{"no partitions", false}, {"free partitions", true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o, pool := newOutbox(t, postgres.Options{})
			if tc.partitions {
				join := core.Member{Session: newSession(), Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 4}}}
				if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: join, Join: true}); err != nil {
					t.Fatal(err)
				}
			}
			var ids []string
			for _, s := range stage(t, pool, o, message(waybill.Key("k")), message(waybill.Key("k"), waybill.ID("2")), message(waybill.Key("k")), message(waybill.Key("other"), waybill.ID("4"))) {
				ids = append(ids, s.ID)
			}
			for _, err := range []error{
				skip(t.Context(), o, "k", ids[1]), skip(t.Context(), o, "k", "no such"), skip(t.Context(), o, "other", ids[0]),
				o.DecideHead(t.Context(), waybill.DefaultRoute, "k", ids[0], admin.HeadRequeue), o.DecideHead(t.Context(), "no such", "k", ids[0], admin.HeadSkip),
			} {
				if !errors.Is(err, waybill.ErrNotFound) {
					t.Errorf("decided: %v", err)
				}
			}
			if err := skip(t.Context(), o, "k", ids[0]); err != nil {
				t.Fatal(err)
			}
			if err := o.DecideHead(t.Context(), waybill.DefaultRoute, "k", ids[1], admin.HeadSetAside); err != nil {
				t.Fatal(err)
			}
			if err := skip(t.Context(), o, "k", ids[0]); !errors.Is(err, waybill.ErrNotFound) {
				t.Errorf("decided twice: %v", err)
			}
			if a, b, c := reasonOf(t, pool, ids[0]), reasonOf(t, pool, ids[1]), reasonOf(t, pool, ids[2]); a != "skipped" || b != "set_aside" || c != "" {
				t.Errorf("the reasons are %q, %q, %q", a, b, c)
			}
			if n := query[int](t, pool, "SELECT count(*) FROM waybill.waybill_outbox_routes WHERE route = 'no such'"); n != 0 {
				t.Error("a route was made by a question")
			}
		})
	}
}

// OP-18: a member that takes the partition at that moment waits for the decision, and does not hand the message out.
func TestDecideWhileAMemberJoins(t *testing.T) {
	t.Parallel()
	head := func(ctx context.Context, o *postgres.Outbox, st *admin.Stored) error {
		return skip(ctx, o, "k", st.Envelope.ID)
	}
	many := func(ctx context.Context, o *postgres.Outbox, st *admin.Stored) error {
		d := admin.Decision{Route: st.Route, Seq: st.Seq, ID: st.Envelope.ID}
		got, err := o.DecideRecords(ctx, admin.DecideRequest{Reason: waybill.ReasonSkipped, Decisions: []admin.Decision{d}})
		if err == nil && got[0].Result != admin.DecisionCarriedOut {
			err = fmt.Errorf("%+v", got[0])
		}
		return err
	}
	for _, tc := range []struct {
		name              string
		partitions, leave bool
		decide            func(ctx context.Context, o *postgres.Outbox, st *admin.Stored) error
	}{
		{"a route that nobody has served", false, false, head},
		{"free partitions", true, false, head},
		{"a route that is served no more", true, true, head},
		{"many, of a route that nobody has served", false, false, many},
		{"many, of free partitions", true, false, many},
		{"many, of a route that is served no more", true, true, many},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o, pool := newOutbox(t, postgres.Options{})
			id := stage(t, pool, o, message(waybill.Key("k")))[0].ID
			m := core.Member{Session: newSession(), Heartbeats: 1, Lease: time.Minute, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
			partition := core.Partition{Route: waybill.DefaultRoute, To: 64}
			if tc.partitions {
				if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Join: true}); err != nil {
					t.Fatal(err)
				}
			}
			if tc.leave {
				if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Leave: true}); err != nil {
					t.Fatal(err)
				}
				m.Session = newSession()
			}
			st, err := o.Inspect(t.Context(), waybill.DefaultRoute, id)
			if err != nil {
				t.Fatal(err)
			}
			exec(t, pool, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN NEW; END $$;
				CREATE TRIGGER slow BEFORE UPDATE ON waybill.waybill_outbox FOR EACH ROW EXECUTE FUNCTION slow()`)
			decided := make(chan error, 1)
			go func() { decided <- tc.decide(t.Context(), o, &st) }()
			patience.Until(t, "it is being decided", func() bool {
				return query[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database())")
			})
			take := core.HeartbeatRequest{Self: m, Join: true, Transfers: []core.Transfer{{Partition: partition, To: m.Session}}}
			if _, err := o.Heartbeat(t.Context(), take); err != nil {
				t.Fatal(err)
			}
			p := read(t, o, m.Session, waybill.DefaultRoute)
			if len(p.Ranges[0].Records) != 0 || p.Owned[0] != core.AllSlots {
				t.Errorf("read %+v of slots %b", p.Ranges[0].Records, p.Owned)
			}
			if err := <-decided; err != nil || reasonOf(t, pool, id) != "skipped" {
				t.Errorf("decided: %v", err)
			}
		})
	}
}

// OP-18: the owner of a due record carries a decision out, and the operator's call returns the result.
func TestDecideTellsTheOwner(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	self := session(t, o, waybill.DefaultRoute)
	ids := stage(t, pool, o, message(waybill.Key("a")), message(waybill.Key("b")), message(waybill.Key("c"), waybill.DedupeKey("d")))
	// decide decides, and lets the owner answer.
	decide := func(key, id string, action admin.HeadAction, answer func(r *core.Record, c *core.Notice) []core.Outcome) error {
		decided := make(chan error, 1)
		go func() { decided <- o.DecideHead(t.Context(), waybill.DefaultRoute, key, id, action) }()
		var p core.ReadResult
		patience.Until(t, "the owner is told", func() bool {
			p = read(t, o, self, waybill.DefaultRoute)
			return len(p.Notices) > 0
		})
		c := &p.Notices[0]
		if c.Kind != core.NoticeDecide || c.Key != key || c.ID != id || c.Route != waybill.DefaultRoute || len(p.Notices) != 1 {
			t.Fatalf("told %+v", p.Notices)
		}
		for i := range p.Ranges[0].Records {
			if r := &p.Ranges[0].Records[i]; r.Seq == c.Seq && r.ID == c.ID && r.Slot == c.Slot {
				settle(t, o, answer(r, c)...)
				return <-decided
			}
		}
		t.Fatalf("%+v is about no record", c)
		return nil
	}
	cancel := func(r *core.Record, c *core.Notice) []core.Outcome {
		return []core.Outcome{core.Cancel(r, c.Reason), core.DeleteNotice(c)}
	}
	if err := decide("a", ids[0].ID, admin.HeadSetAside, cancel); err != nil || reasonOf(t, pool, ids[0].ID) != "set_aside" {
		t.Errorf("set aside: %v", err)
	}
	err := decide("b", ids[1].ID, admin.HeadSkip, func(r *core.Record, c *core.Notice) []core.Outcome {
		return []core.Outcome{core.Published(r), core.DeleteNotice(c)} // it was being sent
	})
	if !errors.Is(err, waybill.ErrNotFound) || reasonOf(t, pool, ids[1].ID) != "gone" {
		t.Errorf("published meanwhile: %v", err)
	}
	// a cancellable record without a hold is out nowhere: it is ended although it has an owner
	if err := o.DecideHead(t.Context(), waybill.DefaultRoute, "c", ids[2].ID, admin.HeadSkip); err != nil {
		t.Error(err)
	}
	if s := stage(t, pool, o, message(waybill.DedupeKey("d"))); s[0].Duplicate {
		t.Error("the dedupe key of what was cancelled is not free")
	}
	if n := query[int](t, pool, "SELECT sum(attempts) FROM waybill.waybill_outbox"); n != 0 {
		t.Errorf("%d attempts were counted", n)
	}
}

// OP-18: a decision that its owner does not come to is stored, and says so after ten seconds, or when its context ends.
func TestDecisionStands(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	self := session(t, o, waybill.DefaultRoute)
	ids := stage(t, pool, o, message(waybill.Key("a")), message(waybill.Key("b")))
	told := func() int {
		p := read(t, o, self, waybill.DefaultRoute)
		if len(p.Ranges[0].Records) != 2 {
			t.Errorf("%d records are left", len(p.Ranges[0].Records))
		}
		return len(p.Notices)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	decided := make(chan error, 1)
	go func() { decided <- skip(ctx, o, "b", ids[1].ID) }()
	patience.Until(t, "the owner is told", func() bool { return told() == 1 })
	end()
	if err := <-decided; waybill.ClassOf(err) != waybill.ClassOutage || !errors.Is(err, context.Canceled) {
		t.Errorf("its context ended: %v", err)
	}
	if n := told(); n != 1 {
		t.Errorf("after the end of its context %d decisions stand", n)
	}
	if !tier.IsNightly() { // the rest takes 10 s of real time
		return
	}
	began := time.Now()
	if err := skip(t.Context(), o, "a", ids[0].ID); !errors.Is(err, waybill.ErrInFlight) || time.Since(began) < 10*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	if n := told(); n != 2 {
		t.Errorf("%d decisions stand, want 2", n)
	}
}

// OP-18: a held record is in flight, also if its partition has no owner.
func TestDecideAboutWhatIsHeld(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	self := session(t, o, waybill.DefaultRoute)
	id := stage(t, pool, o, message(waybill.Key("a")))[0].ID
	r := read(t, o, self, waybill.DefaultRoute).Ranges[0].Records[0]
	if ok, err := o.ReleasePartition(t.Context(), self, partitionsOf(t, o, waybill.DefaultRoute)[0], []core.Ref{r.Ref}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := skip(t.Context(), o, "a", id); !errors.Is(err, waybill.ErrInFlight) {
		t.Errorf("held: %v", err)
	}
	settle(t, o, core.Release(&r, 0, false))
	if err := skip(t.Context(), o, "a", id); err != nil || reasonOf(t, pool, id) != "skipped" {
		t.Errorf("released: %v", err)
	}
}
