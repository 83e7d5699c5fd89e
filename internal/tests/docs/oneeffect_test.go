package docs_test

// A message that the old relay sent before the move, and that Waybill sends after it, has one effect. The messages of
// the old relays have the properties and headers that those relays set.

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/importer"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/consumer/foreign"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// oldSQLAlchemy returns what the old relay sends of the rows that move.
func oldSQLAlchemy(t *testing.T, c *pgx.Conn, where string) (sent []amqp.Publishing, keys []string) {
	t.Helper()
	for _, r := range queryRows[struct {
		RoutingKey string
		Body       []byte
		IDs        string
	}](t, c, `SELECT routing_key, body, tracking_ids::text AS ids FROM outbox_table WHERE `+where+` ORDER BY created_at, id`) {
		keys = append(keys, r.RoutingKey)
		sent = append(sent, amqp.Publishing{
			ContentType: "application/json", DeliveryMode: amqp.Persistent, Body: r.Body, Headers: amqp.Table{"x-outbox-tracking-ids": r.IDs},
		})
	}
	return sent, keys
}

// oldForze is oldSQLAlchemy for forze, which writes the fields of a body in another order than the database, and sends
// the event id as the key of a message without one.
func oldForze(t *testing.T, c *pgx.Conn, where string) (sent []amqp.Publishing, keys []string) {
	t.Helper()
	for _, r := range queryRows[struct {
		EventID, EventType        string
		Payload                   map[string]any
		Key, Tenant, Conversation *string
		OccurredAt                time.Time
	}](t, c, `SELECT event_id::text, event_type, payload, coalesce(ordering_key, event_id::text) AS key, tenant_id::text AS tenant, correlation_id::text AS conversation,
		occurred_at FROM app.outbox WHERE `+where+` ORDER BY hlc`) {
		body, err := json.MarshalIndent(r.Payload, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		headers := amqp.Table{
			"forze_event_id": r.EventID, "forze_correlation_id": deref(r.Conversation), "forze_hlc": "001795696026933.00000",
			"forze_occurred_at": r.OccurredAt.Format(time.RFC3339Nano),
		}
		for name, v := range map[string]*string{"forze_key": r.Key, "forze_tenant_id": r.Tenant} {
			if v != nil {
				headers[name] = *v
			}
		}
		keys = append(keys, "shop:orders")
		sent = append(sent, amqp.Publishing{
			ContentType: "application/json", DeliveryMode: amqp.Persistent, Body: body, Type: r.EventType, Headers: headers,
		})
	}
	return sent, keys
}

// oldWatermill is oldSQLAlchemy for the forwarder of Watermill and its AMQP transport, with topics as routing keys.
func oldWatermill(t *testing.T, c *pgx.Conn, where string) (sent []amqp.Publishing, keys []string) {
	t.Helper()
	for _, r := range queryRows[struct{ Payload []byte }](t, c, `SELECT convert_to(payload::text, 'UTF8') AS payload
		FROM watermill_forwarder_topic WHERE `+where+` ORDER BY "offset"`) {
		var f forwarded
		if err := json.Unmarshal(r.Payload, &f); err != nil {
			t.Fatal(err)
		}
		body, err := base64.StdEncoding.DecodeString(f.Payload)
		if err != nil {
			t.Fatal(err)
		}
		headers := amqp.Table{"_watermill_message_uuid": f.UUID}
		for name, v := range f.Metadata {
			headers[name] = v
		}
		keys = append(keys, f.DestinationTopic)
		sent = append(sent, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body, Headers: headers})
	}
	return sent, keys
}

// oldGoOutbox is oldSQLAlchemy for the dispatcher of go-outbox.
func oldGoOutbox(t *testing.T, c *pgx.Conn, where string) (sent []amqp.Publishing, keys []string) {
	t.Helper()
	for _, r := range queryRows[struct {
		ID, Topic string
		Payload   []byte
		Headers   map[string]string
	}](t, c, `SELECT id::text, topic, payload, headers FROM outbox.messages WHERE `+where+` ORDER BY available_at, id`) {
		p := amqp.Publishing{MessageId: r.ID, DeliveryMode: amqp.Persistent, ContentType: "application/octet-stream", Body: r.Payload, Headers: amqp.Table{}}
		for name, v := range r.Headers {
			p.Headers[name] = v
			if name == "content-type" {
				p.ContentType = v
			}
		}
		keys = append(keys, r.Topic)
		sent = append(sent, p)
	}
	return sent, keys
}

// oldDebezium is oldSQLAlchemy for the outbox event router of Debezium.
func oldDebezium(t *testing.T, c *pgx.Conn, where string) (sent []amqp.Publishing, keys []string) {
	t.Helper()
	for _, r := range queryRows[struct {
		ID, Aggregatetype string
		Payload           *string
	}](t, c, `SELECT id::text, aggregatetype, payload::text FROM outboxevent WHERE `+where+` ORDER BY "timestamp"`) {
		keys = append(keys, "outbox.event."+r.Aggregatetype)
		sent = append(sent, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(deref(r.Payload)), Headers: amqp.Table{"id": r.ID}})
	}
	return sent, keys
}

// MV-01, MV-02: the old relay sends each message twice, each time with a new message-id, as after a crash. Then its row
// moves, and Waybill sends it. Each message has one effect, and its lineage or conversation is known.
func TestMovedMessageHasOneEffect(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		where string
		old   func(*testing.T, *pgx.Conn, string) ([]amqp.Publishing, []string)
		reads foreign.Reader
		inbox inbox.Options
		chain string // the column for what is told of the context of a message
		key   string // the expression of the key, if the old broker does not carry it
	}{
		"sqlalchemy": {
			where: "sent_at IS NULL AND send_after <= now() AND expiration IS NULL AND length(routing_key) < 256",
			old:   oldSQLAlchemy, reads: foreign.TrackingIDs("/orders"),
			chain: "array_to_string(ARRAY (SELECT json_array_elements_text(attrs->'lineage')), ' ')",
		},
		"forze": {
			where: "status = 'pending' AND attempts = 0 AND outbox_route = 'order-events'", old: oldForze, reads: foreign.Forze("/orders"),
			inbox: inbox.Options{AnyBody: true}, chain: "correlation_id",
		},
		"watermill": {where: `"offset" > 6`, old: oldWatermill, reads: foreign.Watermill("/orders"), chain: "correlation_id"},
		"go-outbox": {
			where: "status = 0 AND stream = 'local' AND target->>'version' IS NULL AND available_at <= now()", old: oldGoOutbox,
			reads: foreign.MessageID("/orders"), chain: "correlation_id", key: "''",
		},
		"debezium": {where: "true", old: oldDebezium, reads: foreign.IDFromHeader("id", "/orders"), chain: "correlation_id", key: "''"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool, store := openMoved(t, testenv.Postgres(t).DSN)
			marks, err := postgres.NewInbox(pool, postgres.InboxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			c, err := pool.Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Release()
			if err := marks.Migrate(ctx); err != nil {
				t.Fatal(err)
			}
			for _, sql := range []string{
				read(t, filepath.Join("testdata", "moving", name+".sql")), `CREATE TABLE effects (id text, chain text, topic text)`,
			} {
				if _, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatal(err)
				}
			}

			quiet := slog.New(slog.DiscardHandler)
			mq := testenv.RabbitMQ(t)
			bus, err := rabbitmq.Dial(ctx, mq.URL, rabbitmq.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = bus.Close(context.WithoutCancel(ctx)) }()
			box, err := inbox.New(marks, "billing", tc.inbox)
			if err != nil {
				t.Fatal(err)
			}
			h := inbox.Handler(box, waybill.NewTopic("any", waybill.Bytes("")), func(ctx context.Context, tx pgx.Tx, _ []byte) error {
				d, _ := waybill.DeliveryFrom(ctx)
				chain := d.Envelope.CorrelationID
				if name == "sqlalchemy" {
					chain = strings.Join(d.Envelope.Lineage, " ")
				}
				_, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1, $2, $3)`, d.Envelope.ID, chain, d.Envelope.Topic)
				return err
			})
			h.Name, h.NameIsTopic = waybill.AnyMessage, false
			con, err := consumer.New(bus, consumer.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			// A set Prefetch gives nothing back, so the last message is handled last.
			sub := waybill.Subscription{Queue: "billing", Bindings: []string{"#"}, Concurrency: 1, Prefetch: 1, Foreign: tc.reads}
			if err := con.Handle(sub, h); err != nil {
				t.Fatal(err)
			}
			running, stop := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- con.Run(running) }()
			defer func() {
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			conn, err := amqp.Dial(mq.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			var ch *amqp.Channel
			patience.Until(t, "the queue is there", func() bool {
				// The broker closes a channel that names a missing queue.
				if ch, err = conn.Channel(); err != nil {
					t.Fatal(err)
				}
				_, err := ch.QueueDeclarePassive("billing", true, false, false, false, nil)
				return err == nil
			})
			// The consumer declares first and binds then.
			if err := ch.QueueBind("billing", "#", "waybill", false, nil); err != nil {
				t.Fatal(err)
			}

			sent, keys := tc.old(t, c.Conn(), tc.where)
			for i, p := range append(sent, sent...) {
				if name != "go-outbox" { // the others send no id, or a new one each time
					p.MessageId = fmt.Sprintf("random-%d", i)
				}
				if err := ch.PublishWithContext(ctx, "waybill", keys[i%len(keys)], true, false, p); err != nil {
					t.Fatal(err)
				}
			}
			columns := map[string]string{"route": "'default'"}
			if tc.key != "" {
				columns["key"] = tc.key
			}
			for {
				batch, err := store.Import(ctx, importer.Request{From: name, Source: "/orders", Where: tc.where, Limit: 7, Columns: columns})
				if err != nil {
					t.Fatal(err)
				}
				if batch.Moved == 0 {
					break
				}
			}
			if _, err := c.Exec(ctx, `CREATE TABLE sent_rows AS SELECT * FROM waybill.waybill_outbox`); err != nil {
				t.Fatal(err)
			}
			r, err := relay.New(store, nil, relay.Options{Logger: quiet, Routes: []relay.Route{{Name: "default", Publisher: bus}}})
			if err != nil {
				t.Fatal(err)
			}
			if done, err := r.RunOnce(ctx); err != nil || done.Published != len(sent) {
				t.Fatalf("%+v, %v; want %d published", done, err, len(sent))
			}
			if err := ch.PublishWithContext(ctx, "waybill", "the.end", true, false, amqp.Publishing{MessageId: "end", AppId: "/test", ContentType: "application/json"}); err != nil {
				t.Fatal(err)
			}
			patience.Moving(t, "each message and the last one had an effect", func() (int, bool) {
				var n, ids int
				var end bool
				err := c.QueryRow(ctx, `SELECT count(*), count(DISTINCT id), coalesce(bool_or(topic = 'the.end'), false) FROM effects`).Scan(&n, &ids, &end)
				if err != nil {
					t.Fatal(err)
				}
				return n, end && ids > len(sent)
			})
			type effect struct {
				ID, Topic, Chain string
				N                int
			}
			want := queryRows[effect](t, c.Conn(), `SELECT id, topic, `+tc.chain+` AS chain, 1 AS n FROM sent_rows ORDER BY 1, 2, 3`)
			got := queryRows[effect](t, c.Conn(), `SELECT id, topic, chain, count(*) AS n FROM effects WHERE topic <> 'the.end'
				GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`)
			if diff := cmp.Diff(want, got); diff != "" || len(want) != len(sent) {
				t.Errorf("effects of %d messages (-want +got):\n%s", len(sent), diff)
			}
			parked, err := bus.ListParked(ctx, "billing", admin.ParkedFilter{}, 3)
			if err != nil || len(parked) != 0 {
				t.Errorf("messages are parked: %+v, %v", parked, err)
			}
		})
	}
}
