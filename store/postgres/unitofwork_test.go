package postgres_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// shop is an aggregate.
type shop struct{ waybill.Recorder }

// ST-03 ST-14: the unit of work and recorders on real transactions: all or nothing at every failure, with the outbox's
// own unit and with one over pgx.BeginFunc.
func TestUnitOfWork(t *testing.T) {
	t.Parallel()
	for name, unitOf := range map[string]func(o *postgres.Outbox, pool *pgxpool.Pool) (*waybill.UnitOfWork[pgx.Tx], error){
		"one round trip": func(o *postgres.Outbox, _ *pgxpool.Pool) (*waybill.UnitOfWork[pgx.Tx], error) {
			return o.UnitOfWork(), nil
		},
		"BeginFunc": func(o *postgres.Outbox, pool *pgxpool.Pool) (*waybill.UnitOfWork[pgx.Tx], error) {
			return waybill.NewUnitOfWork(o, func(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return fn(ctx, tx) })
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, pool := newOutbox(t, postgres.Options{})
			exec(t, pool, "CREATE TABLE shops (id int PRIMARY KEY)")
			unit, err := unitOf(o, pool)
			if err != nil {
				t.Fatal(err)
			}
			allOrNothing(t, pool, unit)
		})
	}
}

func allOrNothing(t *testing.T, pool *pgxpool.Pool, unit *waybill.UnitOfWork[pgx.Tx]) {
	t.Helper()
	var s shop
	s.Record(message(waybill.ID("recorded")))
	no := errors.New("no")
	for name, tc := range map[string]struct {
		fn   func(ctx context.Context) error
		want error
	}{
		"the function fails": {func(context.Context) error { return no }, no},
		"a bad message":      {func(ctx context.Context) error { return unit.Stage(ctx, message(waybill.Replace(""))) }, waybill.ErrInvalid},
		"all is well":        {func(context.Context) error { return nil }, nil},
	} {
		err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO shops SELECT count(*) FROM shops"); err != nil {
				return err
			}
			if err := errors.Join(unit.Stage(ctx, message()), unit.StageRecorded(ctx, &s)); err != nil {
				return err
			}
			return tc.fn(ctx)
		})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
	shops, msgs := queryInt(t, pool, "SELECT count(*) FROM shops"), queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox")
	if shops != 1 || msgs != 2 || len(s.Recorded()) != 0 {
		t.Errorf("%d shops, %d messages, %d events still recorded; want 1, 2, 0", shops, msgs, len(s.Recorded()))
	}
}

// ST-03: the messages of many calls, more than one statement takes, keep their order, with dedupe keys between them
// too.
func TestUnitOfWorkStagesInOrder(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	unit := o.UnitOfWork()
	var want []string
	err := unit.Do(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		for i := range 2*waybill.MaxMessages + 2 {
			id := strconv.Itoa(i)
			opts := []waybill.MessageOption{waybill.ID(id)}
			if i >= 2*waybill.MaxMessages {
				opts = append(opts, waybill.DedupeKey(id))
			}
			if err := unit.Stage(ctx, message(opts...)); err != nil {
				return err
			}
			want = append(want, id)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), "SELECT id FROM waybill.waybill_outbox ORDER BY seq")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%d messages, %v; want %d in order", len(got), err, len(want))
	}
}

// unitSQL makes tables whose rows fail in the COMMIT, and an outbox that refuses a topic.
const unitSQL = `
CREATE TABLE shops (id int PRIMARY KEY);
CREATE TABLE parts (shop int REFERENCES shops DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE races (id int);
CREATE FUNCTION race() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE serialization_failure; END $$;
CREATE CONSTRAINT TRIGGER race AFTER INSERT ON races DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION race();
CREATE TABLE kills (id int);
CREATE FUNCTION kill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER kill AFTER INSERT ON kills DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION kill();
ALTER TABLE waybill.waybill_outbox ADD CONSTRAINT refused CHECK (topic <> 't.refused');`

// ST-03 DB-02: an error of Do means that nothing was committed and nothing staged, in any mode of the pool.
func TestUnitOfWorkFails(t *testing.T) {
	t.Parallel()
	run := func(sql string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql)
			return err
		}
	}
	swallow := func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "SELECT 1/0")
		return nil
	}
	nothing := func(context.Context, pgx.Tx) error { return nil }
	cases := []struct {
		name  string
		fn    func(ctx context.Context, tx pgx.Tx) error
		msgs  []waybill.Message
		want  error
		state string // if want is nil
		class waybill.Class
	}{
		{"the insert fails", nothing, []waybill.Message{waybill.RawMessage("t.refused", "text/plain", nil)}, nil, "23514", waybill.ClassRejected},
		{"a deferred constraint", run("INSERT INTO parts VALUES (7)"), []waybill.Message{message()}, nil, "23503", waybill.ClassRejected},
		{"a serialisation failure", run("INSERT INTO races VALUES (1)"), []waybill.Message{message()}, nil, "40001", waybill.ClassOutage},
		{"the backend dies", run("INSERT INTO kills VALUES (1)"), []waybill.Message{message()}, nil, "57P01", waybill.ClassOutage},
		{"a swallowed error", swallow, []waybill.Message{message()}, pgx.ErrTxCommitRollback, "", waybill.ClassRejected},
		{"a swallowed error, with a dedupe key", swallow, []waybill.Message{message(waybill.DedupeKey("d"))}, pgx.ErrTxCommitRollback, "", waybill.ClassRejected},
		{"a swallowed error, nothing staged", swallow, nil, pgx.ErrTxCommitRollback, "", waybill.ClassRejected},
		{"its own Commit", func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, []waybill.Message{message()}, waybill.ErrInvalid, "", waybill.ClassUnknown},
		{"its own Rollback", func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, []waybill.Message{message()}, pgx.ErrTxClosed, "", waybill.ClassUnknown},
		{"its own Rollback, nothing staged", func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) }, nil, pgx.ErrTxClosed, "", waybill.ClassUnknown},
		{"its own ROLLBACK", run("ROLLBACK"), []waybill.Message{message()}, pgx.ErrTxClosed, "", waybill.ClassUnknown},
		{"its own ROLLBACK, nothing staged", run("ROLLBACK"), nil, pgx.ErrTxClosed, "", waybill.ClassUnknown},
	}
	for _, mode := range queryExecModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			// a unit that keeps its connection stops the others
			pool, _ := newSinglePool(t, "default_query_exec_mode="+mode)
			o := outboxOn(t, pool, postgres.Options{})
			exec(t, pool, unitSQL, pgx.QueryExecModeSimpleProtocol)
			unit := o.UnitOfWork()
			for _, tc := range cases {
				var used pgx.Tx
				opened := pool.Stat().NewConnsCount()
				err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					used = tx
					if err := run("INSERT INTO shops VALUES (1)")(ctx, tx); err != nil {
						return err
					}
					return errors.Join(tc.fn(ctx, tx), unit.Stage(ctx, tc.msgs...))
				})
				state := ""
				if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
					state = pgErr.Code
				}
				if tc.want != nil && !errors.Is(err, tc.want) || state != tc.state || waybill.ClassOf(err) != tc.class {
					t.Errorf("%s: got %v (%v), want %v %s (%v)", tc.name, err, waybill.ClassOf(err), tc.want, tc.state, tc.class)
				}
				if err := run("SELECT 1")(t.Context(), used); !errors.Is(err, pgx.ErrTxClosed) {
					t.Errorf("%s: afterwards its transaction says %v", tc.name, err)
				}
				if n := queryInt(t, pool, "SELECT (SELECT count(*) FROM shops) + (SELECT count(*) FROM waybill.waybill_outbox)"); n != 0 {
					t.Fatalf("%s: %d rows were committed", tc.name, n)
				}
				if kept := pool.Stat().NewConnsCount() == opened; kept != (state != "57P01") {
					t.Errorf("%s: the connection was kept: %v", tc.name, kept)
				}
			}
		})
	}
}

// ST-03: a panic, a context that ends and a row that is never read roll back, and none keeps its connection.
func TestUnitOfWorkAbandoned(t *testing.T) {
	t.Parallel()
	pool, _ := newSinglePool(t, "")
	o := outboxOn(t, pool, postgres.Options{})
	unit := o.UnitOfWork()
	do := func(end func(cancel context.CancelFunc, tx pgx.Tx)) (panicked any, err error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		defer func() { panicked = recover() }()
		return nil, unit.Do(ctx, func(ctx context.Context, tx pgx.Tx) error {
			end(cancel, tx)
			return unit.Stage(ctx, message())
		})
	}
	if panicked, _ := do(func(context.CancelFunc, pgx.Tx) { panic("no") }); panicked != "no" {
		t.Errorf("panic: %v", panicked)
	}
	if _, err := do(func(cancel context.CancelFunc, _ pgx.Tx) { cancel() }); !errors.Is(err, context.Canceled) || waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("context ended: %v", err)
	}
	if _, err := do(func(_ context.CancelFunc, tx pgx.Tx) { tx.QueryRow(t.Context(), "SELECT 1") }); err == nil {
		t.Error("a row was never read")
	}
	if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// ST-03: after the end the transaction, its savepoints and its large objects answer as those of pgx do.
func TestUnitOfWorkTxAfterTheEnd(t *testing.T) {
	t.Parallel()
	pool, _ := newSinglePool(t, "")
	o := outboxOn(t, pool, postgres.Options{})
	exec(t, pool, "CREATE TABLE shops (id int)")
	unit := o.UnitOfWork()
	var txs []pgx.Tx
	var objects []pgx.LargeObjects
	for _, large := range []bool{false, true} {
		err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			kept, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			undone, err := kept.Begin(ctx)
			if err != nil {
				return err
			}
			_, err = undone.Exec(ctx, "INSERT INTO shops VALUES (1)")
			if err = errors.Join(err, undone.Rollback(ctx)); err != nil {
				return err
			}
			txs = append(txs, tx, kept, undone)
			_, err = kept.Exec(ctx, "INSERT INTO shops VALUES (2)")
			if large {
				objects = append(objects, tx.LargeObjects(), kept.LargeObjects())
				_, create := objects[0].Create(ctx, 0)
				err = errors.Join(err, create)
			}
			return errors.Join(err, unit.Stage(ctx, message()))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := queryInt(t, pool, "SELECT sum(id) + (SELECT count(*) FROM waybill.waybill_outbox) FROM shops"); n != 6 {
		t.Errorf("shops and messages: %d", n)
	}
	ctx := t.Context()
	for i, lo := range objects {
		if _, err := lo.Create(ctx, 0); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("large objects %d: %v", i, err)
		}
	}
	for i, tx := range txs {
		for name, err := range afterTheEnd(ctx, tx) {
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s of %d: %v", name, i, err)
			}
		}
		if tx.Conn() != nil {
			t.Errorf("Conn of %d", i)
		}
	}
}

// afterTheEnd calls every method of tx that can fail.
func afterTheEnd(ctx context.Context, tx pgx.Tx) map[string]error {
	errs := map[string]error{"Rollback": tx.Rollback(ctx), "QueryRow": tx.QueryRow(ctx, "SELECT 1").Scan(nil)}
	_, errs["Begin"] = tx.Begin(ctx)
	_, errs["Exec"] = tx.Exec(ctx, "SELECT 1")
	_, errs["Prepare"] = tx.Prepare(ctx, "p", "SELECT 1")
	_, errs["CopyFrom"] = tx.CopyFrom(ctx, pgx.Identifier{"shops"}, []string{"id"}, pgx.CopyFromRows(nil))
	rows, err := tx.Query(ctx, "SELECT 1")
	rows.Close()
	errs["Query"] = errors.Join(err, rows.Err())
	var b pgx.Batch
	b.Queue("SELECT 1")
	errs["SendBatch"] = tx.SendBatch(ctx, &b).Close()
	objects := tx.LargeObjects()
	_, errs["LargeObjects"] = objects.Create(ctx, 0)
	return errs
}

// ST-03: a goroutine that goes on with the transaction writes in it or, from its end on, nowhere.
func TestUnitOfWorkStrayGoroutine(t *testing.T) {
	t.Parallel()
	pool, _ := newSinglePool(t, "")
	o := outboxOn(t, pool, postgres.Options{})
	exec(t, pool, "CREATE TABLE stray (id int)")
	if err := o.Seed(t.Context()); err != nil { // otherwise the first Stage meets the goroutine's statement
		t.Fatal(err)
	}
	unit := o.UnitOfWork()
	for _, want := range slices.Repeat([]error{nil, errors.New("no")}, 25) {
		began, ended := make(chan struct{}), make(chan error)
		err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			go func() {
				_, err := tx.Exec(ctx, "INSERT INTO stray VALUES (1)")
				close(began)
				for err == nil {
					_, err = tx.Exec(ctx, "INSERT INTO stray VALUES (1)")
				}
				ended <- err
			}()
			<-began
			return errors.Join(unit.Stage(ctx, message()), want)
		})
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
		if n := queryInt(t, pool, "SELECT count(DISTINCT xmin::text) FROM stray"); (n == 1) != (want == nil) || n > 1 {
			t.Errorf("%d transactions wrote; the error was %v", n, want)
		}
		if err := <-ended; !errors.Is(err, pgx.ErrTxClosed) {
			t.Error(err)
		}
		exec(t, pool, "TRUNCATE stray")
	}
}

// ST-03: wherever the unit of work comes from, a Do within a Do joins; and the tables may have to be made first.
func TestUnitOfWorkIsOneForTheOutbox(t *testing.T) {
	t.Parallel()
	pool, _ := newSinglePool(t, "")
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test", AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	err = o.UnitOfWork().Do(t.Context(), func(ctx context.Context, outer pgx.Tx) error {
		_ = o.UnitOfWork().Do(ctx, func(ctx context.Context, inner pgx.Tx) error {
			if inner != outer {
				t.Error("another transaction")
			}
			return errors.Join(o.UnitOfWork().Stage(ctx, message()), no)
		})
		return nil
	})
	if !errors.Is(err, no) {
		t.Errorf("got %v", err)
	}
	if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// DB-10: a message that the unit of work stages wakes a relay.
func TestUnitOfWorkWakes(t *testing.T) {
	t.Parallel()
	o, _ := newOutbox(t, postgres.Options{})
	unit := o.UnitOfWork()
	wakes(t, o, core.WakeNotify, func() {
		if err := unit.Do(t.Context(), func(ctx context.Context, _ pgx.Tx) error { return unit.Stage(ctx, message()) }); err != nil {
			t.Error(err)
		}
	})
}

// TestUnitOfWorkConflict: two transactions lock two rows in opposite orders. The database ends one of them. Its error
// says so in the same words on every store, and it may simply be run again.
func TestUnitOfWorkConflict(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	exec(t, pool, "CREATE TABLE shops (id int PRIMARY KEY, n int NOT NULL DEFAULT 0); INSERT INTO shops VALUES (1), (2)")
	var both, g sync.WaitGroup
	both.Add(2)
	var conflicts atomic.Int32
	unit := o.UnitOfWork()
	for first := range 2 {
		g.Go(func() {
			met := false
			for {
				err := unit.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					for i := range 2 {
						if _, err := tx.Exec(ctx, "UPDATE shops SET n = n + 1 WHERE id = $1", 1+(first+i)%2); err != nil {
							return err
						}
						if !met {
							met = true
							both.Done()
							both.Wait()
						}
					}
					return unit.Stage(ctx, message())
				})
				if !errors.Is(err, waybill.ErrRetryTx) {
					if err != nil {
						t.Error(err)
					}
					return
				}
				conflicts.Add(1)
			}
		})
	}
	g.Wait()
	if n := queryInt(t, pool, "SELECT sum(n) FROM shops"); n != 4 {
		t.Errorf("the rows count %d", n)
	}
	if n := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); n != 2 || conflicts.Load() == 0 {
		t.Errorf("%d messages after %d conflicts", n, conflicts.Load())
	}
}
