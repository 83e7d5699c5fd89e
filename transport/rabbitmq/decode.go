package rabbitmq

import (
	"encoding/base64"
	"encoding/json"
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

// A delivery is read from a foreign message, too. Properties and headers are all optional, and Waybill's own headers
// count only if the message came by the subscription's dead-letter exchange, or by the default exchange, to which no
// role may write: a producer cannot make up an attempt or a reason.

// decode makes the delivery out of d. It never fails: a problem goes to out.Err. The body is d's own.
func decode(out *waybill.Delivery, d *amqp.Delivery, queue, dlx string, now time.Time) {
	// It came from a delay queue, or through the dead-letter exchange: Waybill's headers are our own. Those of a
	// message that came otherwise, from another system for example, say nothing about this queue.
	fromUs := d.Exchange == "" || d.Exchange == dlx
	out.Queue, out.Attempt, out.Redeliveries = queue, 1, redeliveries(d, fromUs)
	e := &out.Envelope
	var topic string
	for name, value := range d.Headers {
		readHeader(e, name, value, &topic)
	}
	if n := number(d.Headers[headerAttempt]); n > 1 && fromUs {
		out.Attempt = int(min(n, math.MaxInt32))
	}
	if due := number(d.Headers[headerDue]); due > 0 && fromUs {
		out.NotBefore = time.UnixMilli(due)
	}
	e.Body, e.Priority = d.Body, d.Priority
	e.Topic = d.RoutingKey
	setIfEmpty(&topic, deathTopic(d.Headers))
	if topic != "" && fromUs {
		e.Topic = topic
	}
	if d.MessageId != "" && e.ID != "" && d.MessageId != e.ID {
		out.Err = permanent("receive", waybill.ReasonIDConflict, fmt.Errorf("property message-id %q and attribute id %q differ: "+
			"let the producer send one of them, or both alike", clip(d.MessageId), clip(e.ID)))
	}
	if why := unreadable(d); why != "" {
		out.Err = permanent("receive", waybill.ReasonUndecodable, fmt.Errorf("the headers cannot be read: %s: let the producer send fewer, "+
			"or put them into the body", why))
	}
	// Attributes win. Properties fill what they leave out: a foreign producer may send properties alone.
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
}

// deathTopic returns the routing key that a message had before the broker dead-lettered it for the first time; "" =
// never. A copy of ours says its topic itself. A message that the broker parked does not, nor does one that a shovel
// took out of a dead-letter queue.
func deathTopic(headers amqp.Table) string {
	deaths, _ := headers["x-death"].([]any)
	if len(deaths) == 0 {
		return ""
	}
	first, _ := deaths[len(deaths)-1].(amqp.Table) // the newest one is in front
	if keys, _ := first["routing-keys"].([]any); len(keys) > 0 {
		return text(keys[0])
	}
	return ""
}

// unreadable returns why headers of d are missing that the driver cannot read; "" = none are.
func unreadable(d *amqp.Delivery) string { return text(d.Headers[headerUnreadable]) }

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
	case strings.HasPrefix(name, prefixHeader):
		name = strings.TrimPrefix(name, prefixHeader)
	case waybill.ReservedHeader(name):
		return
	}
	if e.Headers == nil {
		e.Headers = make(map[string]string, 4)
	}
	e.Headers[name] = text(value)
}

// text returns a header's value as text: JSON for compound values, RFC 3339 for times, base64 for bytes that are no
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

// redeliveries returns how often the message was delivered before without an outcome; -1 = at least once, without a
// count. Quorum queues count in x-delivery-count. From RabbitMQ 4.3 on they count requeues apart, in x-acquired-count,
// so that its presence alone means that no crash happened. carried is the count from before the message was requeued as
// a copy.
func redeliveries(d *amqp.Delivery, fromUs bool) int {
	carried := int64(0)
	if fromUs {
		carried = max(number(d.Headers[headerRedeliveries]), 0)
	}
	counted, known := d.Headers[headerDeliveryCount]
	_, acquired := d.Headers[headerAcquiredCount]
	switch {
	case known && d.Redelivered: // else a producer, or the queue that a shovel took it from, wrote it
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
