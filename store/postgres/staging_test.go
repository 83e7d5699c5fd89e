package postgres_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// ST-01 ST-16: a transaction that cannot be used is refused at once.
func TestStageRefusesUnusableTransactions(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	var none *pgxpool.Tx
	for _, tx := range []pgx.Tx{nil, none} {
		if _, err := o.Stage(t.Context(), tx, message()); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("nil transaction: %v", err)
		}
	}
	if _, err := o.SQL().Stage(t.Context(), nil, message()); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("nil *sql.Tx: %v", err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Stage(t.Context(), tx, message()); !errors.Is(err, pgx.ErrTxClosed) || !strings.Contains(err.Error(), "has ended already") {
		t.Errorf("ended transaction: %v", err)
	}
	stx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := stx.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.SQL().Stage(t.Context(), stx, message()); !errors.Is(err, sql.ErrTxDone) || !strings.Contains(err.Error(), "has ended already") {
		t.Errorf("ended *sql.Tx: %v", err)
	}
}

// ST-12 DB-14: all fields survive the store, staged either way.
func TestEveryFieldIsStored(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	odd := `ö "quoted" \back\ {a,b} NULL '`
	when := time.Date(2030, 1, 2, 3, 4, 5, 678901000, time.UTC)
	full := func() waybill.Message {
		m := waybill.RawMessage("t.x", "application/json; "+odd, []byte{0, 1, 0xff, '"', '\\'}, waybill.Key(odd), waybill.ID(waybill.NewID()+odd), waybill.Type(odd),
			waybill.Subject(odd), waybill.Header("h", odd+"\n\t"), waybill.Header("empty", ""), waybill.OccurredAt(when), waybill.Priority(7), waybill.Tenant(odd), waybill.CorrelationID(odd))
		m.Source, m.CausationID, m.RunID, m.Lineage, m.Expires = "/%C3%B6;a=b,c?x=%22#z", odd, odd, []string{"a", odd}, when.Add(time.Hour)
		m.TraceParent, m.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b"
		return m
	}
	m1, m2, m3 := full(), full(), waybill.RawMessage("t.x", "", nil)
	stage(t, pool, o, m1)
	if err := stageSQL(t.Context(), db, o.SQL(), []waybill.Message{m2, m3}); err != nil {
		t.Fatal(err)
	}
	c := holdNext(t, o, want(10))
	if len(c.Records) != 3 {
		t.Fatalf("held %d", len(c.Records))
	}
	for i, sent := range []waybill.Envelope{m1.Envelope, m2.Envelope} {
		got := c.Records[i].Envelope
		sent.HLC = got.HLC
		if diff := cmp.Diff(sent, got); diff != "" || got.HLC == 0 {
			t.Errorf("message %d: %s", i, diff)
		}
	}
	if e := c.Records[2].Envelope; e.Body == nil || len(e.Body) != 0 || e.Key != "" || e.Type != "t.x" || e.ContentType != "application/octet-stream" || e.Headers != nil {
		t.Errorf("the bare message: %+v", e)
	}
}

// ST-05: duplicates are told one by one, within one call too.
func TestDuplicatesByMessage(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	stage(t, pool, o, message(waybill.ID("b")))
	staged := stage(t, pool, o, message(waybill.ID("a")), message(waybill.ID("b")), message(waybill.ID("a")), message(waybill.ID("c"), waybill.Routes("r1", "r2", "r1")))
	var got []string
	for _, s := range staged {
		got = append(got, fmt.Sprintf("%s/%s/%v", s.ID, s.Route, s.Duplicate))
	}
	want := "a/default/false b/default/true a/default/true c/r1/false c/r2/false c/r1/true"
	if strings.Join(got, " ") != want {
		t.Fatalf("%s, want %s", strings.Join(got, " "), want)
	}
}

// OP-04: staging makes a span that the message carries.
func TestStageSpan(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	o, pool := newOutbox(t, postgres.Options{TracerProvider: tp})
	ctx, root := tp.Tracer("test").Start(t.Context(), "business")
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := o.Stage(ctx, tx, message())
		return err
	})
	root.End()
	if err != nil {
		t.Fatal(err)
	}
	c := holdNext(t, o, want(1))
	created, span := spans.Ended()[0], spans.Ended()[1]
	if span.Name() != "waybill stage" || span.Parent().SpanID() != root.SpanContext().SpanID() || created.Parent().SpanID() != span.SpanContext().SpanID() ||
		core.SpanContextOf(&c.Records[0].Envelope).SpanID() != created.SpanContext().SpanID() {
		t.Fatalf("spans %s and %s, message %s", created.Name(), span.Name(), c.Records[0].Envelope.TraceParent)
	}
}

// DB-04 DB-11: rows that are put in by hand cannot have times that no clock shows, which a program could not read.
func TestInfinityIsRefused(t *testing.T) {
	t.Parallel()
	_, pool := newOutbox(t, postgres.Options{})
	for _, column := range []string{"due_at", "expires_at", "occurred_at", "ready_since"} {
		for _, value := range []string{"infinity", "-infinity"} {
			_, err := pool.Exec(t.Context(), fmt.Sprintf("INSERT INTO waybill.waybill_outbox (topic, body, %s) VALUES ('t', '', '%s')", column, value))
			if err == nil || !strings.Contains(err.Error(), "waybill_outbox_times") {
				t.Errorf("%s %s: %v", column, value, err)
			}
		}
	}
}

// A record's slot is the same from both places that compute it: a program that stages, and the database for rows that
// are put in by hand, or get another route, key or id.
func TestSlots(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	keys := []string{"", "order-1", "Grüße", `a\b'c"`, strings.Repeat("long", 40)}
	var several []waybill.Message
	for i, key := range keys {
		stage(t, pool, o, message(waybill.Key(key)))
		stage(t, pool, o, message(waybill.Key(key), waybill.DedupeKey("d"+key)), message(waybill.Key(key), waybill.Replace(fmt.Sprint("r", i))))
		several = append(several, message(waybill.Key(key), waybill.Routes("r", "orders")), message(waybill.Key(key), waybill.Delay(time.Hour)))
		exec(t, pool, "INSERT INTO waybill.waybill_outbox (topic, body, key, route) VALUES ('t', '', $1, 'by hand')", key)
		exec(t, pool, "INSERT INTO waybill.waybill_outbox (topic, body, key, route) VALUES ('t', '', 'old', 'old')")
		exec(t, pool, "UPDATE waybill.waybill_outbox SET route = 'changed', key = $1 WHERE route = 'old'", key)
	}
	stage(t, pool, o, several...)
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	if err := stageSQL(t.Context(), db, o.SQL(), several[:1]); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), "SELECT route, key, id, slot FROM waybill.waybill_outbox")
	if err != nil {
		t.Fatal(err)
	}
	var route, key, id string
	var slot uint8
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&route, &key, &id, &slot}, func() error {
		n++
		if want := core.SlotOf(route, key, id); slot != want {
			t.Errorf("a record of route %q with key %q and id %q has slot %d, want %d", route, key, id, slot, want)
		}
		return nil
	})
	if err := errors.Join(err, rows.Err()); err != nil || n != 8*len(keys)+2 {
		t.Errorf("%d rows, %v", n, err)
	}
}
