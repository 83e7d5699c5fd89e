package rabbitmq

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// headerOverhead is what a header frame has beside the properties: the frame's own 8 bytes, class, weight, size of the
// body and flags (14 bytes), and the header with the tag, which is added last.
const headerOverhead = 8 + 14 + 32

// checkHeaderFrame returns an error if the properties of p do not fit into a frame: the broker would close the
// connection. limit is the negotiated frame_max; 0 = none.
func checkHeaderFrame(p *amqp.Publishing, limit int) error {
	if limit == 0 {
		return nil
	}
	if n := propertyBytes(p) + headerOverhead; n > limit {
		return permanent("publish", waybill.ReasonTooLarge, fmt.Errorf("headers and properties have %d bytes; the broker takes at most %d "+
			"(its frame_max): send fewer or shorter headers, or put them into the body", n, limit))
	}
	return nil
}

// propertyBytes is the size of p's properties on the wire, as AMQP 0-9-1 encodes them (section 4.2.6). It is at most a
// few bytes too large, for properties that are absent.
func propertyBytes(p *amqp.Publishing) int {
	n := 11 + 1 + 1 + 8 // lengths of the short strings, delivery mode, priority, timestamp
	for _, s := range [...]string{
		p.ContentType, p.ContentEncoding, p.CorrelationId, p.ReplyTo, p.Expiration, p.MessageId, p.Type, p.UserId, p.AppId,
	} {
		n += len(s)
	}
	return n + tableBytes(p.Headers)
}

func tableBytes(t amqp.Table) int {
	n := 4
	for k, v := range t {
		n += 1 + len(k) + valueBytes(v)
	}
	return n
}

// valueBytes is the size of a field with its type.
func valueBytes(v any) int {
	switch v := v.(type) {
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case bool, int8, byte:
		return 2
	case int16, uint16:
		return 3
	case int, int32, uint32, float32:
		return 5
	case int64, float64, time.Time:
		return 9
	case amqp.Decimal:
		return 6
	case amqp.Table:
		return 1 + tableBytes(v)
	case []any:
		n := 5
		for _, x := range v {
			n += valueBytes(x)
		}
		return n
	}
	return 1
}

// fitHeaders makes the properties of a parked copy fit into a frame of limit bytes: it leaves out the error, and then
// the largest headers that are not Waybill's. It writes the names of those into headerLeftOut, as far as they fit.
func fitHeaders(p *amqp.Publishing, limit int) (leftOut []string) {
	const names = 512 // room for the names
	if checkHeaderFrame(p, limit) == nil {
		return nil
	}
	delete(p.Headers, headerError)
	for checkHeaderFrame(p, limit-names) != nil {
		largest, size := "", 0
		for name, v := range p.Headers {
			if n := valueBytes(v); !strings.HasPrefix(name, "waybill-") && n > size {
				largest, size = name, n
			}
		}
		if size == 0 {
			break // nothing is left to leave out: the broker will say so
		}
		delete(p.Headers, largest)
		leftOut = append(leftOut, largest)
	}
	if len(leftOut) > 0 {
		list := strings.Join(leftOut, ",")
		p.Headers[headerLeftOut] = list[:min(len(list), names/2)]
	}
	return leftOut
}
