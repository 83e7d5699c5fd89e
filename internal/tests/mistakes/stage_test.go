package mistakes_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

func TestStage(t *testing.T) { //nolint:tparallel // the cases count the records of one store // ST-15 ST-16
	t.Parallel()
	const limit = 1000
	many := make([]waybill.Message, waybill.MaxMessages+1)
	for i := range many {
		many[i] = raw("a.b")
	}
	body := func(n int) waybill.Message { return waybill.RawMessage("a.b", "text/plain", make([]byte, n)) }
	cases := []struct {
		name string
		msgs []waybill.Message
		says []string // nil: it is fine
	}{
		{"invalid UTF-8 topic", []waybill.Message{raw("a.\xff\xfe")}, []string{"Topic: ", "is not valid UTF-8"}},
		{
			"invalid UTF-8 in others",
			[]waybill.Message{raw("a.b", waybill.Key("\xff"), waybill.ID("\x00"), waybill.Header("h", "\xc3("))},
			[]string{"Key: ", "ID: ", `Headers["h"]: `, "is not valid UTF-8", "control character 0x00"},
		},
		{"empty topic", []waybill.Message{raw("")}, []string{"Topic: is empty; name the routing key"}},
		{"wildcard topic", []waybill.Message{raw("a.*")}, []string{`Topic: "a.*" holds a wildcard; only bindings may`}},
		{"reserved header", []waybill.Message{raw("a.b", waybill.Header("X-Death", "1"))}, []string{`Headers["X-Death"]: the name is reserved`, "choose another"}},
		{"long id", []waybill.Message{raw("a.b"), raw("a.b", waybill.ID(strings.Repeat("x", 256)))}, []string{"messages[1].ID: has 256 bytes; at most 255 are allowed"}},
		{"negative delay", []waybill.Message{raw("a.b", waybill.Delay(-time.Second))}, []string{"Delay: -1s is negative"}},
		{"time and delay", []waybill.Message{raw("a.b", waybill.Delay(time.Second), waybill.DeliverAt(time.Now()))}, []string{"DeliverAt: set together with Delay; choose one"}},
		{"far future", []waybill.Message{raw("a.b", waybill.DeliverAt(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)))}, []string{"DeliverAt: year 9999", "Limits.MaxDelay"}},
		{"body below the limit", []waybill.Message{body(limit - 500)}, nil},
		{"body over the limit", []waybill.Message{body(limit + 1)}, []string{"Body: has 1001 bytes, and the whole message 10", "at most 1000 are allowed", "raise Limits.MaxMessageBytes"}},
		{"300 MB", []waybill.Message{body(300 << 20)}, []string{"Body: has 314572800 bytes, ", "at most 1000 are allowed", "send a reference"}},
		{"10,001 messages", many, []string{"10001 messages in one call; at most 10000 are allowed: split the call"}},
		{
			"codec error",
			[]waybill.Message{waybill.NewTopic("a.b", waybill.JSON[chan int]()).Message(make(chan int))},
			[]string{"Body: ", `encode chan int for topic "a.b"`, "unsupported type"},
		},
		{"no codec", []waybill.Message{waybill.Topic[int]{}.Message(1)}, []string{"Body: ", "declare it with waybill.NewTopic"}},
		{"one bad of three", []waybill.Message{raw("a.b"), raw(""), raw("a.b")}, []string{"messages[1].Topic: is empty"}},
	}
	for _, o := range outboxes(t, waybill.Limits{MaxMessageBytes: limit}) {
		t.Run(o.name, func(t *testing.T) {
			for _, tc := range cases {
				t.Run(tc.name, func(t *testing.T) {
					before := stored(t, o.store)
					err := ends(t, func() error {
						_, err := o.stage(t.Context(), tc.msgs...)
						return err
					})
					if tc.says == nil {
						if err != nil || stored(t, o.store) != before+len(tc.msgs) {
							t.Errorf("%v, %d records, there were %d", err, stored(t, o.store), before)
						}
						return
					}
					check(t, err, want{is: waybill.ErrInvalid, says: append(tc.says, "waybill: stage")})
					if n := stored(t, o.store); n != before {
						t.Errorf("%d records, there were %d", n, before)
					}
				})
			}
			t.Run("no transaction", func(t *testing.T) {
				check(t, o.none(t.Context(), raw("a.b")), want{is: waybill.ErrInvalid, says: []string{"waybill/" + o.name + ": stage", "tx: is nil; "}})
			})
			t.Run("closed transaction", func(t *testing.T) {
				check(t, o.after(t.Context(), raw("a.b")), want{is: waybill.ErrInvalid, says: []string{"waybill/" + o.name + ": stage", "the transaction ", "before its commit"}})
			})
		})
	}
}

func TestStageInTransactionThatCannot(t *testing.T) { // ST-01
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	migrate(t, pool)
	o := newOutbox(t, pool, postgres.Options{})
	bg := context.WithoutCancel(t.Context())
	for _, seeded := range []bool{false, true} {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT 1/0"); err == nil {
			t.Fatal("no error")
		}
		_, err = o.Stage(t.Context(), tx, raw("a.b"))
		check(t, err, want{is: waybill.ErrInvalid, says: []string{
			"waybill/postgres: stage", "an earlier statement of this transaction failed", "return that statement's error",
		}})
		_ = tx.Rollback(bg)

		ro, err := pool.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = o.Stage(t.Context(), ro, raw("a.b")); err != nil {
			check(t, err, want{class: waybill.ClassOutage, says: []string{"waybill/postgres: stage", "read-only"}})
		} else {
			t.Error("staged in a read-only transaction")
		}
		_ = ro.Rollback(bg)
		if !seeded { // the first Stage makes a statement more
			if _, err := stageOn(t, pool, o, raw("a.b")); err != nil {
				t.Fatal(err)
			}
		}
	}

	// A cancelled context is the caller's.
	ctx, cancel := context.WithCancel(t.Context())
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(bg) }()
	cancel()
	if _, err = o.Stage(ctx, tx, raw("a.b")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}

	// database/sql.
	if _, err := o.SQL().Stage(t.Context(), (*sql.Tx)(nil), raw("a.b")); true {
		check(t, err, want{is: waybill.ErrInvalid, says: []string{"tx: is nil; pass the open *sql.Tx"}})
	}
	if n := number(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); n != 1 {
		t.Errorf("%d records", n)
	}
}

func stageOn(tb testing.TB, pool interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, o waybill.Stager[pgx.Tx], msgs ...waybill.Message,
) (staged []waybill.Staged, err error) {
	tb.Helper()
	err = pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) error {
		staged, err = o.Stage(tb.Context(), tx, msgs...)
		return err
	})
	return staged, err
}

// ST-15: a transaction that has ended, and one of another database, are refused with what to do.
func TestTransactionsThatCannotStage(t *testing.T) {
	t.Parallel()
	here, other := openPool(t, testenv.Postgres(t).DSN), openPool(t, testenv.Postgres(t).DSN)
	store, err := postgres.New(here, postgres.Options{Source: "/e2e"})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		pool  *pgxpool.Pool
		ended bool
		want  string
	}{
		"ended":            {here, true, "the transaction has ended already; use it before its commit or rollback"},
		"another database": {other, false, "pass a transaction of the database that has it"},
	} {
		tx, err := tc.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if tc.ended {
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := store.Stage(t.Context(), tx, waybill.RawMessage("a.b", "", nil)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		_ = tx.Rollback(t.Context())
	}
}
