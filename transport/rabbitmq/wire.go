package rabbitmq

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

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
	// headerRedeliveries carries a count of redeliveries over a copy that was given back.
	headerRedeliveries = "waybill-redeliveries"
	// headerReason, headerError, headerQueue and headerParkedAt travel with a parked message; headerError with a
	// retried one too.
	headerReason   = "waybill-reason"
	headerError    = "waybill-error"
	headerQueue    = "waybill-queue"
	headerParkedAt = "waybill-parked-at"
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
		table[k] = v
	}
	p := amqp.Publishing{
		Headers: table, ContentType: e.ContentType, DeliveryMode: amqp.Persistent, Priority: e.Priority, CorrelationId: e.CorrelationID,
		MessageId: e.ID, Timestamp: e.Time, Type: e.Type, AppId: e.Source, Body: e.Body,
	}
	var err error
	p.Expiration, err = expiration(e.Expires, now)
	return p, err
}

// headerNames are the wire names of the known attributes, so that encoding allocates none.
var headerNames = func() map[string]string {
	m := map[string]string{core.AttrTraceParent: core.AttrTraceParent, core.AttrTraceState: core.AttrTraceState}
	for _, a := range []string{
		core.AttrSpecVersion, core.AttrSubject, core.AttrTime, core.AttrKey, core.AttrCausationID, core.AttrTenant, core.AttrRunID, core.AttrLineage, core.AttrHLC, core.AttrExpires,
	} {
		m[a] = prefixCE + a
	}
	return m
}()

var errExpired = errors.New("the message's time is over")

// expiration returns what remains of a message's time as AMQP has it: "" = for ever.
func expiration(expires, now time.Time) (string, error) {
	if expires.IsZero() {
		return "", nil
	}
	left := expires.Sub(now)
	if left <= 0 {
		return "", permanent("publish", waybill.ReasonExpired, errExpired)
	}
	ms := int64((left + time.Millisecond - 1) / time.Millisecond)
	if ms > maxExpiration {
		return "", nil // the absolute time in the attribute still holds
	}
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

// decode makes a delivery of what arrived. It never fails: what cannot be used as it is says so in Delivery.Err.
func decode(d *amqp.Delivery, queue, dlx string, now time.Time) waybill.Delivery {
	out := waybill.Delivery{Queue: queue, Attempt: 1, Redeliveries: redeliveries(d)}
	e := &out.Envelope
	var topic string
	for name, value := range d.Headers {
		readHeader(e, name, value, &topic)
	}
	if n := number(d.Headers[headerAttempt]); n > 1 {
		out.Attempt = int(min(n, math.MaxInt32))
	}
	e.Body, e.Priority = bytes.Clone(d.Body), d.Priority // the raw message stays as it is for copies
	e.Topic = d.RoutingKey
	if topic != "" && (d.Exchange == "" || d.Exchange == dlx || d.Headers[headerQueue] != nil) { // it came back from a delay queue, at once, or from the dead
		e.Topic = topic
	}
	if d.MessageId != "" && e.ID != "" && d.MessageId != e.ID {
		out.Err = permanent("receive", waybill.ReasonIDConflict, fmt.Errorf("property message-id %q and attribute id %q differ: let the producer send one of them, or both alike", clip(d.MessageId), clip(e.ID)))
	}
	setIfEmpty(&e.ID, d.MessageId)
	setIfEmpty(&e.Type, d.Type)
	setIfEmpty(&e.Source, d.AppId)
	setIfEmpty(&e.CorrelationID, d.CorrelationId)
	if d.ContentType != "" {
		e.ContentType = d.ContentType
	}
	if e.Time.IsZero() && !d.Timestamp.IsZero() {
		e.Time = d.Timestamp.UTC()
	}
	if e.Expires.IsZero() && d.Expiration != "" { // a foreign producer's: at most this long from now
		if ms, err := strconv.ParseInt(d.Expiration, 10, 64); err == nil && ms >= 0 && ms <= maxExpiration {
			e.Expires = now.Add(time.Duration(ms) * time.Millisecond).UTC().Truncate(time.Microsecond)
		}
	}
	return out
}

// readHeader puts one header where it belongs. Headers of Waybill and of the broker stay in the raw message.
func readHeader(e *waybill.Envelope, name string, value any, topic *string) {
	attr, isCE := strings.CutPrefix(name, prefixCE)
	if !isCE {
		attr, isCE = strings.CutPrefix(name, prefixColon)
	}
	switch {
	case isCE && attr == core.AttrTopic:
		*topic = text(value)
		return
	case isCE || name == core.AttrTraceParent || name == core.AttrTraceState:
		if known, err := core.SetAttribute(e, attr, text(value)); known && err == nil {
			return
		} // else it stays as a header
	case waybill.ReservedHeader(name):
		return
	}
	if e.Headers == nil {
		e.Headers = make(map[string]string, 4)
	}
	e.Headers[name] = text(value)
}

// text returns a header's value as text: JSON for what has parts, RFC 3339 for times, base64 for bytes that are no
// text.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case nil:
		return ""
	case []byte:
		if utf8.Valid(v) {
			return string(v)
		}
		return base64.StdEncoding.EncodeToString(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case bool:
		return strconv.FormatBool(v)
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case amqp.Decimal:
		return strconv.FormatFloat(float64(v.Value)/math.Pow10(int(v.Scale)), 'f', int(v.Scale), 64)
	case amqp.Table, []any:
		b, err := json.Marshal(plain(v))
		if err != nil {
			return ""
		}
		return string(b)
	}
	return fmt.Sprint(v) // the integers
}

// plain turns nested values into what JSON can hold.
func plain(v any) any {
	switch v := v.(type) {
	case amqp.Table:
		m := make(map[string]any, len(v))
		for k, x := range v {
			m[k] = plain(x)
		}
		return m
	case []any:
		a := make([]any, len(v))
		for i, x := range v {
			a[i] = plain(x)
		}
		return a
	case bool, int8, int16, int32, int64, uint8, uint16, uint32, nil:
		return v
	}
	return text(v)
}

// number returns a header's value as an integer, or 0.
func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case int32:
		return int64(v)
	case int16:
		return int64(v)
	case int8:
		return int64(v)
	case int:
		return int64(v)
	case uint8:
		return int64(v)
	case uint16:
		return int64(v)
	case uint32:
		return int64(v)
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return 0
}

// redeliveries returns how often the message was delivered before without an outcome; -1 = at least once, but nobody
// counted. Quorum queues count in x-delivery-count. From RabbitMQ 4.3 on they count what was given back apart, in
// x-acquired-count, so that its presence alone means that nothing was lost by a crash. carried is the count from before
// the message was given back as a copy.
func redeliveries(d *amqp.Delivery) int {
	carried := max(number(d.Headers[headerRedeliveries]), 0)
	counted, known := d.Headers[headerDeliveryCount]
	_, acquired := d.Headers[headerAcquiredCount]
	switch {
	case known:
		carried += max(number(counted), 0)
	case acquired, !d.Redelivered:
	default:
		return -1
	}
	return int(min(carried, math.MaxInt32))
}

func setIfEmpty(p *string, v string) {
	if *p == "" {
		*p = v
	}
}

// brokersOwn reports whether a header was put there by the broker on this message's way, so that a copy must not carry
// it.
func brokersOwn(name string) bool {
	return name == headerDeliveryCount || name == headerAcquiredCount || name == "x-death" || strings.HasPrefix(name, "x-first-death-") ||
		strings.HasPrefix(name, "x-last-death-")
}

// copyOf returns a copy of d to publish again: every property, and the headers but the broker's own and Waybill's
// counters. The real routing key and the absolute expiry are written, so that the first is known at the end and the
// copy's time goes on instead of starting again.
func copyOf(d *amqp.Delivery, topic string, expires time.Time) amqp.Publishing {
	table := make(amqp.Table, len(d.Headers)+8)
	for k, v := range d.Headers {
		switch {
		case brokersOwn(k), k == headerTag, k == headerAttempt, k == headerRedeliveries, k == headerError:
		default:
			table[k] = v
		}
	}
	table[prefixCE+core.AttrTopic] = topic
	if !expires.IsZero() && table[prefixCE+core.AttrExpires] == nil && table[prefixColon+core.AttrExpires] == nil {
		table[prefixCE+core.AttrExpires] = expires.UTC().Format(time.RFC3339Nano)
	}
	if d.UserId != "" {
		table[headerUserID] = d.UserId
	}
	return amqp.Publishing{
		Headers: table, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}
}

// setAttempt writes the number of the attempt, unless it is the first.
func setAttempt(table amqp.Table, attempt int) {
	if attempt > 1 {
		table[headerAttempt] = int64(attempt)
	}
}
