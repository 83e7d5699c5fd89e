package docs_test

// The messages that the rows of Watermill, River, go-outbox and Debezium become, computed in Go from the old rows.

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// forwarded is the envelope that Watermill's forwarder puts around a message.
type forwarded struct {
	DestinationTopic string `json:"destination_topic"`
	UUID             string
	Payload          string
	Metadata         map[string]string
}

// row returns the row that the message becomes.
func (f forwarded) row(t *testing.T, at time.Time) movedRow {
	t.Helper()
	body, err := base64.StdEncoding.DecodeString(f.Payload)
	if err != nil {
		t.Fatal(err)
	}
	w := movedRow{
		ReadySince: &at, Route: "default", ID: f.UUID, Topic: f.DestinationTopic, Source: "/orders", Body: hex.EncodeToString(body), OccurredAt: at,
		State: int(core.StatePending), CorrelationID: f.Metadata["correlation_id"], Attrs: movedAttrs{Headers: map[string]string{}},
	}
	for name, v := range f.Metadata {
		if name != "correlation_id" {
			w.Attrs.Headers[name] = v
		}
	}
	return w
}

func wantWatermill(t *testing.T, c *pgx.Conn, _ time.Time) (want []movedRow) {
	t.Helper()
	for _, r := range queryRows[struct {
		Payload   []byte
		CreatedAt time.Time
	}](t, c, `SELECT convert_to(payload::text, 'UTF8') AS payload, created_at FROM watermill_forwarder_topic
		WHERE "offset" > (SELECT offset_acked FROM watermill_offsets_forwarder_topic) ORDER BY "offset"`) {
		var f forwarded
		if err := json.Unmarshal(r.Payload, &f); err != nil {
			t.Fatal(err)
		}
		want = append(want, f.row(t, r.CreatedAt.Add(-330*time.Minute))) // the server's clock is that of India
	}
	return want
}

func wantWatermillQueue(t *testing.T, c *pgx.Conn, at time.Time) (want []movedRow) {
	t.Helper()
	for _, r := range queryRows[struct {
		Payload   []byte
		Metadata  map[string]string
		CreatedAt time.Time
	}](t, c, `SELECT payload, metadata, created_at FROM watermill_forwarder_topic WHERE NOT acked ORDER BY "offset"`) {
		var f forwarded
		if err := json.Unmarshal(r.Payload, &f); err != nil {
			t.Fatal(err)
		}
		w := f.row(t, r.CreatedAt)
		w.ReadySince = &r.CreatedAt
		if text := r.Metadata["_watermill_delayed_until"]; text != "" {
			until, err := time.Parse(time.RFC3339, text)
			if err != nil {
				t.Fatal(err)
			}
			w.DueAt, w.ReadySince = later(&until, at), &until
		}
		want = append(want, w)
	}
	return want
}

func wantRiver(t *testing.T, c *pgx.Conn, at time.Time) (want []movedRow) {
	t.Helper()
	for _, r := range queryRows[struct {
		ID                       int64
		State, Kind, Queue, Args string
		Attempt, Priority        int
		Errors                   []byte
		Tags                     []string
		Metadata                 map[string]json.RawMessage
		CreatedAt, ScheduledAt   time.Time
		AttemptedAt              *time.Time
	}](t, c, `SELECT id, state::text, kind, queue, args::text, attempt, priority, to_json(errors) AS errors, tags, metadata,
		created_at, scheduled_at, attempted_at FROM river_job ORDER BY priority, scheduled_at, id`) {
		switch r.State {
		case "completed", "cancelled", "pending":
			continue
		case "running":
			if r.AttemptedAt.After(at.Add(-time.Hour)) { // its worker may live
				continue
			}
		}
		w := movedRow{
			Route: r.Queue, ID: strconv.FormatInt(r.ID, 10), Topic: r.Kind, Source: "/orders", ContentType: "application/json",
			Body: hex.EncodeToString([]byte(r.Args)), OccurredAt: r.CreatedAt, ReadySince: &r.ScheduledAt, State: int(core.StatePending),
			Attempts: r.Attempt, Deliveries: r.Attempt, Attrs: movedAttrs{Headers: map[string]string{}},
		}
		if r.Priority > 1 {
			w.Route += "/" + string(waybill.LaneLow)
		}
		for name, v := range r.Metadata {
			var text string
			if err := json.Unmarshal(v, &text); err != nil {
				text = string(v)
			}
			w.Attrs.Headers[name] = text
		}
		if len(r.Tags) > 0 {
			w.Attrs.Headers["tags"] = strings.Join(r.Tags, ",")
		}
		if r.Errors != nil {
			var failures []struct {
				At    time.Time
				Error string
			}
			if err := json.Unmarshal(r.Errors, &failures); err != nil {
				t.Fatal(err)
			}
			last := failures[len(failures)-1]
			when := last.At.Round(time.Microsecond)
			w.LastError, w.LastErrorAt = last.Error, &when
		}
		switch r.State {
		case "discarded":
			w.State, w.Settled, w.Reason = int(core.StateAbandoned), true, string(waybill.ReasonAttempts)
		case "running":
			w.Attempts, w.MaybeSent = r.Attempt-1, true
		case "retryable":
			w.DueAt = later(&r.ScheduledAt, at)
			w.State, w.Retry = int(core.StateFailed), true
		case "scheduled":
			w.DueAt = later(&r.ScheduledAt, at)
		}
		want = append(want, w)
	}
	return want
}

func wantGoOutbox(t *testing.T, c *pgx.Conn, at time.Time) (want []movedRow) {
	t.Helper()
	const sent, leased, failed = 2, 1, 3
	for _, r := range queryRows[struct {
		ID, Stream, Topic      string
		Payload                []byte
		Headers                map[string]string
		Target                 map[string]any
		Status, Attempts       int
		AvailableAt, CreatedAt time.Time
		LeaseUntil             *time.Time
		LastError              *string
	}](t, c, `SELECT id::text, stream, topic, payload, headers, target, status, attempts, available_at, created_at, lease_until, last_error
		FROM outbox.messages ORDER BY created_at, id`) {
		if r.Status == sent || r.Status == leased && r.LeaseUntil.After(at) {
			continue
		}
		w := movedRow{
			Route: r.Stream, ID: r.ID, Topic: r.Topic, Source: "/orders", ContentType: "application/octet-stream", OccurredAt: r.CreatedAt,
			Body: hex.EncodeToString(r.Payload), ReadySince: &r.AvailableAt, State: int(core.StatePending), Attempts: r.Attempts,
			MaybeSent: r.Status == leased, LastError: deref(r.LastError), Attrs: movedAttrs{Headers: map[string]string{}},
		}
		if key, ok := r.Target["key"]; ok {
			w.Key = fmt.Sprint(key)
		}
		if version, ok := r.Target["version"]; ok {
			w.Topic += fmt.Sprint("_v", version)
		}
		if topic, ok := r.Target["routing_key"]; ok {
			w.Topic = fmt.Sprint(topic)
		}
		for name, v := range r.Headers {
			switch strings.ToLower(name) {
			case "content-type":
				w.ContentType = v
			case "traceparent":
				w.TraceParent = v
			default:
				w.Attrs.Headers[name] = v
			}
		}
		if r.Status == failed {
			w.State, w.Settled, w.Reason = int(core.StateAbandoned), true, string(waybill.ReasonAttempts)
		} else if w.DueAt = later(&r.AvailableAt, at); w.DueAt != nil && r.Attempts > 0 {
			w.State, w.Retry = int(core.StateFailed), true
		}
		want = append(want, w)
	}
	return want
}

func wantDebezium(t *testing.T, c *pgx.Conn, _ time.Time) (want []movedRow) {
	t.Helper()
	for _, r := range queryRows[struct {
		ID, Aggregatetype, Aggregateid, Type string
		Timestamp                            time.Time
		Payload, Tracingspancontext          *string
	}](t, c, `SELECT id::text, aggregatetype, aggregateid, type, "timestamp", payload::text, tracingspancontext FROM outboxevent ORDER BY "timestamp"`) {
		w := movedRow{
			Route: "default", ID: r.ID, Topic: "outbox.event." + r.Aggregatetype, Key: r.Aggregateid, Source: "/orders",
			ContentType: "application/json", Body: hex.EncodeToString([]byte(deref(r.Payload))), OccurredAt: r.Timestamp,
			ReadySince: &r.Timestamp, State: int(core.StatePending), MaybeSent: true,
			Attrs: movedAttrs{Headers: map[string]string{"eventType": r.Type}},
		}
		if _, context, ok := strings.Cut(deref(r.Tracingspancontext), "traceparent="); ok {
			w.TraceParent = strings.TrimSpace(context)
		}
		want = append(want, w)
	}
	return want
}
