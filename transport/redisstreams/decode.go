package redisstreams

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// entry is what a script returns of a stream: names and values in turn.
type entry struct {
	id     string
	fields []any
}

// marks are Waybill's own fields of an entry.
type marks struct {
	attempt, redeliveries int
	reason, err, queue    string
	parkedAt              time.Time
}

// decode reads an entry. It never fails: what cannot be read stays a header. A foreign entry may lack everything: its
// topic is then the queue's name.
func decode(fields []any, queue string) (e waybill.Envelope, m marks) {
	m.attempt = 1
	for i := 0; i+1 < len(fields); i += 2 {
		name, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		readField(&e, &m, name, value)
	}
	if e.Topic == "" {
		e.Topic = queue
	}
	return e, m
}

func readField(e *waybill.Envelope, m *marks, name, value string) {
	switch name {
	case fieldBody:
		e.Body = []byte(value)
		return
	case "content-type", core.AttrContentType: // a foreign producer's, of structured mode say
		if e.ContentType == "" {
			e.ContentType = value
		}
		return
	case fieldPriority:
		e.Priority = uint8(min(count(value), 9))
		return
	case fieldAttempt:
		m.attempt = max(count(value), 1)
		return
	case fieldRedeliveries:
		m.redeliveries = count(value)
		return
	case fieldReason:
		m.reason = value
		return
	case fieldError:
		m.err = value
		return
	case fieldQueue:
		m.queue = value
		return
	case fieldParkedAt:
		m.parkedAt, _ = time.Parse(time.RFC3339Nano, value)
		return
	}
	if attr, ok := strings.CutPrefix(name, prefixCE); ok || name == core.AttrTraceParent || name == core.AttrTraceState {
		if known, err := core.SetAttribute(e, attr, value); known && err == nil {
			return
		} // else it stays as a header
	} else if strings.HasPrefix(name, "waybill-") {
		return
	}
	setHeader(e, strings.TrimPrefix(name, prefixHeader), value)
}

func setHeader(e *waybill.Envelope, name, value string) {
	if e.Headers == nil {
		e.Headers = make(map[string]string, 4)
	}
	e.Headers[name] = value
}

// count reads a number that is not negative; any other text is 0.
func count(s string) int {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return int(min(n, math.MaxInt32))
}

// parkedOf reads an entry of a parked stream.
func parkedOf(x entry, queue string, position int) admin.Parked {
	e, m := decode(x.fields, queue)
	if m.queue == "" {
		m.queue = queue
	}
	if m.parkedAt.IsZero() { // somebody else put it there
		ms, _, _ := strings.Cut(x.id, "-")
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil {
			m.parkedAt = time.UnixMilli(n).UTC()
		}
	}
	return admin.Parked{
		Envelope: e, Position: position, Queue: m.queue, Reason: waybill.Reason(m.reason), Error: m.err, Attempts: m.attempt, At: m.parkedAt,
	}
}
