package schema_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// newerRelease returns the migrations of a release to come, which this one knows nothing of. Its outbox has one version
// more, made by up; down undoes that.
func newerRelease(t *testing.T, up, down string) *schema.Migrations {
	t.Helper()
	m, err := schema.New(schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Add(up, down); err != nil {
		t.Fatal(err)
	}
	return m
}

// additive is what a migration may do without a word: this release works beside it.
const (
	additive = `
ALTER TABLE {outbox} ADD COLUMN later text, ADD COLUMN later_too integer NOT NULL DEFAULT 7;
CREATE TABLE {schema}.later (a int);
CREATE INDEX later_index ON {outbox} (later) WHERE later IS NOT NULL;
ALTER TABLE {outbox} SET (fillfactor = 60);
INSERT INTO {meta} (name, value) VALUES ('waybill_outbox.later', 1);
`
	unadditive = `
DELETE FROM {meta} WHERE name = 'waybill_outbox.later';
ALTER TABLE {outbox} SET (fillfactor = 90);
DROP TABLE {schema}.later;
ALTER TABLE {outbox} DROP COLUMN later, DROP COLUMN later_too;
`
)

func upgradePool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func upgradeOutbox(t *testing.T, pool *pgxpool.Pool) *postgres.Outbox {
	t.Helper()
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// work stages n messages. One is retried, one released, one abandoned; the rest is published. Then it does all else
// that a release does with its tables.
func work(ctx context.Context, pool *pgxpool.Pool, o *postgres.Outbox, n int) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for i := range n {
			msg := waybill.RawMessage("t.x", "text/plain", []byte("body"), waybill.Key(fmt.Sprint("k", i%5)), waybill.TTL(time.Hour))
			if _, err := o.Stage(ctx, tx, msg); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	partition := core.Partition{Route: waybill.DefaultRoute, To: core.NumSlots}
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	self := core.Member{Session: core.Session(rand.Int64N(1<<62) + 1), Heartbeats: 1, Lease: time.Minute, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
	if _, err := o.Heartbeat(ctx, core.HeartbeatRequest{Self: self, Join: true, Transfers: []core.Transfer{{Partition: partition, To: self.Session}}}); err != nil {
		return err
	}
	ctx, moved := patience.Context(ctx, patience.Limit)
	published := 0
	for published < n-1 {
		due, err := o.Due(ctx, self.Session, []core.RouteSlots{part}, 10)
		if err != nil {
			return err
		}
		result, err := o.Read(ctx, self.Session, core.ReadRequest{Ranges: []core.Range{{RouteSlots: part, UpToSeq: math.MaxInt64, Limit: 50}}})
		if err != nil {
			return err
		}
		var out []core.Outcome
		for i := range due.Retries {
			out = append(out, core.Abandon(&due.Retries[i], waybill.ReasonRejected, errors.New("never")))
		}
		for i := range result.Ranges[0].Records {
			r := &result.Ranges[0].Records[i]
			switch {
			case i == 0 && published == 0:
				out = append(out, core.Retry(r, errors.New("not yet"), time.Millisecond))
			case i == 1 && published == 0:
				if _, err := o.Hold(ctx, self.Session, core.HoldRequest{Refs: []core.Ref{r.Ref}}); err != nil {
					return err
				}
				out = append(out, core.Release(r, 0, false))
			default:
				out = append(out, core.Published(r))
				published++
				moved()
			}
		}
		if err := o.Settle(ctx, self.Session, out).FirstErr(); err != nil {
			return err
		}
	}
	if _, err := o.Heartbeat(ctx, core.HeartbeatRequest{Self: self, Leave: true}); err != nil {
		return err
	}
	if _, err := o.Counts(ctx); err != nil {
		return err
	}
	if _, err := o.Wait(ctx, []string{waybill.DefaultRoute}, time.Millisecond); err != nil {
		return err
	}
	_, err = o.Clean(ctx, "test", time.Minute)
	return err
}

// DB-21: this release works beside the tables of a newer one, and all the while they are migrated, there and back.
func TestWorksBesideANewerSchema(t *testing.T) {
	t.Parallel()
	pool := upgradePool(t)
	newer := newerRelease(t, additive, unadditive)
	o := upgradeOutbox(t, pool)
	if err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close(context.WithoutCancel(t.Context())) }()
	if err := work(t.Context(), pool, o, 50); err != nil {
		t.Fatalf("before: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { // programs of this release run on
		for ctx.Err() == nil {
			if err := work(t.Context(), pool, o, 40); err != nil {
				t.Errorf("meanwhile: %v", err)
				return
			}
		}
	})
	for range 5 {
		if err := newer.Up(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		if err := newer.Down(t.Context(), pool, 89); err != nil {
			t.Fatal(err)
		}
	}
	if err := newer.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	stop()
	wg.Wait()
	// New processes of this release start beside it too.
	fresh := upgradeOutbox(t, pool)
	defer func() { _ = fresh.Close(context.WithoutCancel(t.Context())) }()
	if err := fresh.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := work(t.Context(), pool, fresh, 50); err != nil {
		t.Fatalf("after: %v", err)
	}
	diffs, err := fresh.Drift(t.Context())
	if err != nil || len(diffs) != 1 || !strings.Contains(diffs[0].Object, "fillfactor") {
		t.Errorf("drift %v %v, want the fill factor alone", diffs, err)
	}
	own, err := schema.New(schema.Options{Parts: []schema.Part{schema.PartOutbox}})
	if err != nil {
		t.Fatal(err)
	}
	if err := own.Down(t.Context(), pool, 0); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "newer release") {
		t.Errorf("going back with the older release: %v", err)
	}
}

// DB-21: a schema that says so is refused by programs that do not know it, at their start, with what to do.
func TestRefusesAnIncompatibleSchema(t *testing.T) {
	t.Parallel()
	pool := upgradePool(t)
	newer := newerRelease(t, "-- compatible: 90\nALTER TABLE {outbox} ADD COLUMN later text;\n", "ALTER TABLE {outbox} DROP COLUMN later;\n")
	if err := newer.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	o := upgradeOutbox(t, pool)
	stage := func() error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := upgradeOutbox(t, pool).Stage(t.Context(), tx, waybill.RawMessage("t.x", "text/plain", nil))
			return err
		})
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	for name, err := range map[string]error{
		"check": o.Check(t.Context()),
		"stage": stage(),
		"seed":  o.Seed(t.Context()),
		"stage through database/sql": func() error {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			_, err = o.SQL().Stage(t.Context(), tx, waybill.RawMessage("t.x", "text/plain", nil))
			return err
		}(),
	} {
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "know version 90") || !strings.Contains(err.Error(), "use a newer release") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := newer.Down(t.Context(), pool, 89); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(o.Check(t.Context()), stage()); err != nil {
		t.Errorf("after going back: %v", err)
	}
}

// DB-21: a program beside a schema that is too old says what to run.
func TestOlderSchemaSaysWhatToRun(t *testing.T) {
	t.Parallel()
	pool := upgradePool(t)
	o := upgradeOutbox(t, pool)
	if err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `UPDATE waybill.waybill_meta SET value = 1 WHERE name = 'waybill_outbox.version'; ALTER TABLE waybill.waybill_outbox DROP COLUMN expires_at`); err != nil {
		t.Fatal(err)
	}
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	self := core.Member{Session: 1, Heartbeats: 1, Lease: time.Minute}
	if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Join: true}); err != nil {
		t.Fatal(err)
	}
	_, readErr := o.Read(t.Context(), self.Session, core.ReadRequest{Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1, Limit: 1}}})
	stageErr := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := o.Stage(t.Context(), tx, waybill.RawMessage("t.x", "text/plain", nil))
		return err
	})
	for name, err := range map[string]error{"check": o.Check(t.Context()), "read": readErr, "stage": stageErr} {
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "run the migrations") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// DB-21: from every version there ever was, the newest migrations lead to the shape that Drift knows, and keep the
// staged messages. Released migrations are never edited; the tables of each version are made with them.
func TestUpgradeFromEveryVersion(t *testing.T) {
	t.Parallel()
	all, err := schema.New(schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range schema.Embedded(schema.PartOutbox) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := upgradePool(t)
			if err := all.UpTo(name).Up(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(t.Context(), all.Render("INSERT INTO {outbox} (source, topic, body) VALUES ('/test', 't.x', 'old')")); err != nil {
				t.Fatal(err)
			}
			if err := all.Up(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			if diffs, err := all.Drift(t.Context(), pool); err != nil || diffs != nil {
				t.Errorf("drift after the upgrade: %v %v", diffs, err)
			}
			o := upgradeOutbox(t, pool)
			defer func() { _ = o.Close(context.WithoutCancel(t.Context())) }()
			if r, err := o.List(t.Context(), admin.Filter{}, admin.PageRequest{}); err != nil || len(r.Records) != 1 || r.Records[0].Envelope.Topic != "t.x" {
				t.Fatalf("listed %+v, %v", r, err)
			}
			if _, err := pool.Exec(t.Context(), all.Render("DELETE FROM {outbox}")); err != nil {
				t.Fatal(err)
			}
			if err := work(t.Context(), pool, o, 20); err != nil {
				t.Error(err)
			}
		})
	}
}
