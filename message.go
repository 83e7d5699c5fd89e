package waybill

import (
	"context"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/waybill-go/waybill/hlc"
)

// DefaultRoute is the route of a message that names none.
const DefaultRoute = "default"

// Envelope is the part of a message that travels: CloudEvents 1.0 attributes, Waybill's extensions, the application's
// headers and the body. Empty fields are absent on the wire. A message of a foreign producer can lack any of them.
type Envelope struct {
	// ID identifies the message together with Source. It is a UUIDv7 unless the application chose one.
	ID string
	// Topic is the routing key, such as "orders.placed".
	Topic string
	// Type is the CloudEvents type. It is the topic's name unless the application chose one.
	Type string
	// Source is the CloudEvents source: the producing service, such as "/orders".
	Source string
	// Subject is the CloudEvents subject, such as the id of the aggregate.
	Subject string
	// Time is when the event happened, by the producer's clock, to the microsecond.
	Time time.Time
	// ContentType is the media type of Body, as the codec declared it.
	ContentType string
	// Key is the ordering key. Messages of one key reach the queue in staged order. Empty means unordered.
	Key string
	// Tenant is the tenant that the message belongs to.
	Tenant string
	// CorrelationID is common to all messages of one business conversation.
	CorrelationID string
	// CausationID is the id of the message whose handling staged this one.
	CausationID string
	// RunID identifies one execution (of a workflow, a batch) that staged the message.
	RunID string
	// Lineage is the chain of ancestor ids, oldest first, cut from the middle beyond MaxLineage.
	Lineage []string
	// HLC is the hybrid logical clock stamp given at stage time; zero if the producer has no clock.
	HLC hlc.Timestamp
	// Expires is when the message expires, by the producer's clock; zero = never.
	Expires time.Time
	// Priority is 0 (normal) to 9, for brokers that have priorities.
	Priority uint8
	// TraceParent and TraceState are the W3C trace context of the span that staged the message.
	TraceParent, TraceState string
	// Headers are the application's own. Names are case-sensitive.
	Headers map[string]string
	// Body is the encoded payload.
	Body []byte
}

// Size returns the bytes that the envelope adds to a batch: the body and a fair count of the rest.
func (e *Envelope) Size() int {
	n := len(e.Body) + len(e.ID) + len(e.Topic) + len(e.Type) + len(e.Source) + len(e.Subject) + len(e.ContentType) + len(e.Key) +
		len(e.Tenant) + len(e.CorrelationID) + len(e.CausationID) + len(e.RunID) + len(e.TraceParent) + len(e.TraceState)
	for _, id := range e.Lineage {
		n += len(id) + 1
	}
	for k, v := range e.Headers {
		n += len(k) + len(v)
	}
	return n
}

// Clone returns a deep copy.
func (e *Envelope) Clone() Envelope {
	c := *e
	c.Lineage = slices.Clone(e.Lineage)
	c.Body = slices.Clone(e.Body)
	if e.Headers != nil {
		c.Headers = maps.Clone(e.Headers)
	}
	return c
}

// Expired reports whether the envelope has an expiry that is not after now.
func (e *Envelope) Expired(now time.Time) bool { return !e.Expires.IsZero() && !now.Before(e.Expires) }

// Message is an envelope with directives for the outbox. Build one with [Topic.Message] or [RawMessage]. The
// [core.Stamper] fills empty fields when the message is staged.
type Message struct {
	Envelope
	// Routes are the routes to send it on; each gets a record. Nil means DefaultRoute.
	Routes []string
	// DeliverAt is the earliest time of publishing, compared with the store's clock. Not together with Delay.
	DeliverAt time.Time
	// Delay is the time from staging to the earliest publishing, by the store's clock. Not negative.
	Delay time.Duration
	// TTL bounds the total time until Expires, counted from staging by the producer's clock. Zero means the store's
	// default; negative means none. Not together with Expires.
	TTL time.Duration
	// DedupeKey, if set, makes this the only live (not yet settled) message of its tenant with it on the route and
	// topic. Staging a second one does nothing and is reported in [Staged].Duplicate.
	DedupeKey string
	// Replace lets the newest message win: Stage cancels the live message with the same DedupeKey with
	// [ReasonReplaced] and stages this one. A message that a relay holds cannot be cancelled; Staged.Replaced
	// reports that. Replace needs a DedupeKey.
	Replace bool
	// Cancellable allows cancelling the message although it is due, as long as no relay has it out. It costs the
	// relay a statement. A dedupe key implies it. A message that is scheduled or waits for a retry can always be
	// cancelled.
	Cancellable bool
	// Lane is the priority lane. The lanes of a route are handed out separately and with different weights.
	// Messages of one key are ordered within a lane. Empty means [LaneNormal].
	Lane Lane

	err  error  // a codec's error, reported by Stage
	kind string // the topic's declaration: type and codec; empty for a raw message

	under context.Context //nolint:containedctx // a unit of work stages later, and under another one
}

// EncodeError returns the error of the codec that encoded the body, or nil. Stage reports it.
func (m *Message) EncodeError() error { return m.err }

// Declaration describes the declaration of the message's topic: its type and codec. It is empty for a raw message.
func (m *Message) Declaration() string { return m.kind }

// Context returns the context under which the message was given to a [UnitOfWork], which stages it later; else nil. The
// message belongs to the trace of that context.
func (m *Message) Context() context.Context { return m.under }

// RawMessage returns a message for topic with a body that is already encoded as contentType. It keeps the body without
// a copy. Do not change the body before the message is staged.
func RawMessage(topic, contentType string, body []byte, opts ...MessageOption) Message {
	m := Message{Envelope: Envelope{Topic: topic, ContentType: contentType, Body: body}}
	for _, o := range opts {
		o(&m)
	}
	return m
}

// MessageOption sets one field of a new message.
type MessageOption func(*Message)

// Key sets the ordering key.
func Key(key string) MessageOption { return func(m *Message) { m.Key = key } }

// ID sets the message id instead of a fresh UUIDv7. Staging the same (route, id) a second time does nothing, and fails
// with [ReasonIDConflict] if the first one has another source.
func ID(id string) MessageOption { return func(m *Message) { m.ID = id } }

// Type sets the CloudEvents type instead of the topic's name.
func Type(t string) MessageOption { return func(m *Message) { m.Type = t } }

// Subject sets the CloudEvents subject.
func Subject(s string) MessageOption { return func(m *Message) { m.Subject = s } }

// Routes names the routes to send the message on instead of DefaultRoute.
func Routes(routes ...string) MessageOption { return func(m *Message) { m.Routes = routes } }

// Header sets one application header.
func Header(name, value string) MessageOption {
	return func(m *Message) {
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[name] = value
	}
}

// DeliverAt sets the earliest time of publishing, compared with the store's clock.
func DeliverAt(t time.Time) MessageOption { return func(m *Message) { m.DeliverAt = t } }

// Delay sets the earliest time of publishing, counted from staging by the store's clock.
func Delay(d time.Duration) MessageOption { return func(m *Message) { m.Delay = d } }

// TTL bounds the message's total time, retries and delay queues included.
func TTL(d time.Duration) MessageOption { return func(m *Message) { m.TTL = d } }

// OccurredAt sets the event's time instead of the time of staging.
func OccurredAt(t time.Time) MessageOption { return func(m *Message) { m.Time = t } }

// Priority sets the broker priority, 0 to 9.
func Priority(p uint8) MessageOption { return func(m *Message) { m.Priority = p } }

// Tenant sets the tenant instead of the context's.
func Tenant(t string) MessageOption { return func(m *Message) { m.Tenant = t } }

// CorrelationID sets the correlation id instead of the context's.
func CorrelationID(id string) MessageOption { return func(m *Message) { m.CorrelationID = id } }

// Cancellable allows cancelling the message although it is due.
func Cancellable() MessageOption { return func(m *Message) { m.Cancellable = true } }

// DedupeKey makes the message the only live one of its tenant with this key on its route and topic; see [Message].
func DedupeKey(key string) MessageOption { return func(m *Message) { m.DedupeKey = key } }

// Replace cancels the live message with this dedupe key on its route and topic, and stages this one; see [Message].
func Replace(dedupeKey string) MessageOption {
	return func(m *Message) { m.DedupeKey, m.Replace = dedupeKey, true }
}

// InLane puts the message in a priority lane.
func InLane(l Lane) MessageOption { return func(m *Message) { m.Lane = l } }

// Lane is a priority lane of a route.
type Lane string

// The lanes. A relay that serves the lanes of a route gives them 6, 3 and 1 of 10 messages while all have messages, so
// that no lane starves.
const (
	LaneHigh   Lane = "high"
	LaneNormal Lane = ""
	LaneLow    Lane = "low"
)

// LaneRoute returns the name under which a store keeps a lane of route: route itself, or route + "/" + lane.
func LaneRoute(route string, l Lane) string {
	if l == LaneNormal {
		return route
	}
	return route + "/" + string(l)
}

// MaxSubRoutes bounds the sub-routes of a route.
const MaxSubRoutes = 64

// SubRoute returns one of n sub-routes of route: route + "#" + a number below n, which is the FNV-1a hash (32 bits) of
// by, modulo n. by names the sender that must not starve other senders, such as a tenant or a topic. A relay that
// serves the route with as many sub-routes gives each the same part of its capacity. So a backlog of one tenant delays
// only those that share its number. This is stochastic fairness queueing (P. McKenney, 1990).
//
//	InvoiceDue.Message(v, waybill.Tenant(tenant), waybill.Routes(waybill.SubRoute("invoices", tenant, 16)))
//
// Messages of one key stay in order if they have the same by. n is 1 to [MaxSubRoutes]; another number is taken for the
// nearest one. All programs must use the same: a change is a new route for most, so let the relay serve more first.
func SubRoute(route, by string, n int) string {
	h := fnv.New32a()
	_, _ = io.WriteString(h, by) // never fails
	return NthSubRoute(route, int(h.Sum32()%uint32(min(max(n, 1), MaxSubRoutes))))
}

// NthSubRoute returns the name of a sub-route of route by its number, counted from 0.
func NthSubRoute(route string, i int) string { return route + "#" + strconv.Itoa(i) }

// BaseRoute returns the route that a store's route is a sub-route or a lane of.
func BaseRoute(route string) string {
	base, _, _ := strings.Cut(route, "/")
	if i := strings.LastIndexByte(base, '#'); i >= 0 {
		if _, err := strconv.ParseUint(base[i+1:], 10, 16); err == nil {
			return base[:i]
		}
	}
	return base
}

// NewID returns a fresh UUIDv7 as text. It is safe for concurrent use.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }
