package rabbitmq

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// The names on the wire; docs/wire-format.md is the reference and a golden test pins them. CloudEvents attributes are
// headers with prefixCE; prefixColon is read too.
const (
	prefixCE    = "cloudEvents_"
	prefixColon = "cloudEvents:"

	// headerTag tells a message from another one in flight with the same id, or without any, so that a basic.return
	// finds its message.
	headerTag = "waybill-tag"
	// headerAttempt is the number of the attempt that a delivery is, from 1. Absent on the first.
	headerAttempt = "waybill-attempt"
	// headerRedeliveries carries a count of redeliveries over to a copy that replaces a requeue.
	headerRedeliveries = "waybill-redeliveries"
	// headerDue is when a retry is due that goes on to another delay, in milliseconds since 1970.
	headerDue = "waybill-due"
	// headerReason, headerError, headerQueue and headerParkedAt travel with a parked message; headerError with a
	// retried one too.
	headerReason   = "waybill-reason"
	headerError    = "waybill-error"
	headerQueue    = "waybill-queue"
	headerParkedAt = "waybill-parked-at"
	// headerLeftOut names the headers that a parked copy had no room for.
	headerLeftOut = "waybill-left-out"
	// headerUnreadable says why headers of a message are missing that the driver cannot read. It is never sent.
	headerUnreadable = "waybill-unreadable"
	// prefixHeader is put before a header's name that the broker would take for a command.
	prefixHeader = "waybill-header-"
	// headerUserID keeps a foreign user-id property on a copy: the broker takes that property only from the user
	// itself.
	headerUserID = "waybill-user-id"

	headerDeliveryCount = "x-delivery-count" // quorum queues
	headerAcquiredCount = "x-acquired-count" // quorum queues, RabbitMQ 4.3 and later
)

const maxExpiration = math.MaxUint32 // milliseconds; RabbitMQ takes no more

// encode fills table with the headers of e, and returns the message to publish. The table belongs to the message.
func encode(e *waybill.Envelope, now time.Time, table amqp.Table) (amqp.Publishing, error) {
	table[prefixCE+core.AttrSpecVersion] = core.SpecVersion
	var buf [24]core.Attribute
	for _, a := range core.AppendAttributes(buf[:0], e) {
		if name, ok := headerNames[a.Name]; ok {
			table[name] = a.Value
		}
	}
	for k, v := range e.Headers {
		table[wireName(k)] = v
	}
	p := amqp.Publishing{
		Headers: table, ContentType: e.ContentType, DeliveryMode: amqp.Persistent, Priority: e.Priority, CorrelationId: e.CorrelationID,
		MessageId: e.ID, Timestamp: e.Time, Type: e.Type, AppId: e.Source, Body: e.Body,
	}
	var err error
	p.Expiration, err = expiration(e.Expires, now)
	return p, err
}

// wireName returns the name of an application's header on the wire. RabbitMQ sends a message with CC or BCC to the
// queues that these name, and closes the channel if they are text.
func wireName(name string) string {
	if name == "CC" || name == "BCC" {
		return prefixHeader + name
	}
	return name
}

// headerNames are the wire names of the known attributes, so that encoding allocates none.
var headerNames = func() map[string]string {
	m := map[string]string{core.AttrTraceParent: core.AttrTraceParent, core.AttrTraceState: core.AttrTraceState}
	for _, a := range []string{
		core.AttrSpecVersion, core.AttrSubject, core.AttrTime, core.AttrKey, core.AttrCausationID, core.AttrTenant, core.AttrRunID,
		core.AttrLineage, core.AttrHLC, core.AttrExpires,
	} {
		m[a] = prefixCE + a
	}
	return m
}()

var errExpired = errors.New("the message's time is over")

// expiration returns the rest of a message's time in AMQP's form: "" = for ever.
func expiration(expires, now time.Time) (string, error) {
	if expires.IsZero() {
		return "", nil
	}
	left := expires.Sub(now)
	if left <= 0 {
		return "", permanent("publish", waybill.ReasonExpired, errExpired)
	}
	if left > maxExpiration*time.Millisecond {
		return "", nil // the absolute time in the attribute still holds
	}
	ms := int64((left + time.Millisecond - 1) / time.Millisecond)
	return strconv.FormatInt(ms, 10), nil
}

// checkStrings returns an error if the message has text that AMQP cannot carry: the driver would tear down the
// connection.
func checkStrings(key string, p *amqp.Publishing) error {
	short := func(field, s string) error {
		if len(s) <= 255 {
			return nil
		}
		return permanent("publish", waybill.ReasonRejected, fmt.Errorf("%s has %d bytes; AMQP carries at most 255", field, len(s)))
	}
	for _, f := range [...]struct{ name, value string }{
		{"topic", key},
		{"content type", p.ContentType},
		{"correlation id", p.CorrelationId},
		{"message id", p.MessageId},
		{"type", p.Type},
		{"source", p.AppId},
		{"reply-to", p.ReplyTo},
		{"content encoding", p.ContentEncoding},
		{"user id", p.UserId},
	} {
		if len(f.value) > 255 {
			return short(f.name, f.value)
		}
	}
	for name := range p.Headers {
		if len(name) > 255 {
			return short("the name of header "+strconv.Quote(clip(name)), name)
		}
	}
	return nil
}
