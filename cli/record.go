package cli

import (
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// messageJSON is a message as programs get it. Only show fills the body: as text if it is UTF-8, else as base64.
type messageJSON struct {
	ID            string            `json:"id"`
	Source        string            `json:"source,omitempty"`
	Topic         string            `json:"topic"`
	Type          string            `json:"type,omitempty"`
	Key           string            `json:"key,omitempty"`
	Tenant        string            `json:"tenant,omitempty"`
	Subject       string            `json:"subject,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	CausationID   string            `json:"causation_id,omitempty"`
	RunID         string            `json:"run_id,omitempty"`
	Lineage       []string          `json:"lineage,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Time          time.Time         `json:"time,omitzero"`
	Expires       time.Time         `json:"expires,omitzero"`
	TraceParent   string            `json:"traceparent,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Body          string            `json:"body,omitempty"`
	BodyBase64    []byte            `json:"body_base64,omitempty"`
}

func messageOf(e *waybill.Envelope) messageJSON {
	m := messageJSON{
		ID: e.ID, Source: e.Source, Topic: e.Topic, Type: e.Type, Key: e.Key, Tenant: e.Tenant, Subject: e.Subject,
		CorrelationID: e.CorrelationID, CausationID: e.CausationID, RunID: e.RunID, Lineage: e.Lineage, ContentType: e.ContentType, Time: e.Time, Expires: e.Expires, TraceParent: e.TraceParent, Headers: e.Headers,
	}
	if utf8.Valid(e.Body) {
		m.Body = string(e.Body)
	} else {
		m.BodyBase64 = e.Body
	}
	return m
}

// recordJSON is a stored record as programs get it.
type recordJSON struct {
	Seq       int64     `json:"seq"`
	Route     string    `json:"route"`
	State     string    `json:"state"`
	Reason    string    `json:"reason,omitempty"`
	Attempts  int       `json:"attempts,omitempty"`
	Crashes   int       `json:"crashes,omitempty"`
	DedupeKey string    `json:"dedupe_key,omitempty"`
	Age       float64   `json:"age_seconds"`
	DueIn     float64   `json:"due_in_seconds,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	LeaseIn   float64   `json:"lease_in_seconds,omitempty"`
	Error     string    `json:"error,omitempty"`
	ErrorAt   time.Time `json:"error_at,omitzero"`
	SettledAt time.Time `json:"settled_at,omitzero"`
	// Unreadable says what of the record could not be read.
	Unreadable string `json:"unreadable,omitempty"`
	// Waits says why the record is not out; only show has it.
	Waits   *waitJSON   `json:"waits,omitempty"`
	Message messageJSON `json:"message"`
}

func recordOf(r *admin.Stored) recordJSON {
	out := recordJSON{
		Seq: r.Seq, Route: r.Route, State: r.State.String(), Reason: string(r.Reason), Attempts: r.Attempts, Crashes: r.Crashes,
		DedupeKey: r.DedupeKey, Age: r.Age.Seconds(), DueIn: r.DueIn.Seconds(), Owner: r.Owner, LeaseIn: r.LeaseIn.Seconds(),
		Error: r.LastError, ErrorAt: r.LastErrorAt, SettledAt: r.SettledAt, Message: messageOf(&r.Envelope),
	}
	if r.Err != nil {
		out.Unreadable = r.Err.Error()
	}
	return out
}
