package kafka

import (
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// The names on the wire: those of CloudEvents' Kafka binding, and Waybill's own. docs/wire-format.md is the reference.
const (
	prefixCE           = "ce_"
	prefixHeader       = "waybill-header-" // an application's header with a name that means something else
	contentType        = "content-type"
	headerPriority     = "waybill-priority"
	headerAttempt      = "waybill-attempt"
	headerRedeliveries = "waybill-redeliveries"
	headerError        = "waybill-error"
	headerDue          = "waybill-due"
	headerReason       = "waybill-reason"
	headerQueue        = "waybill-queue"
	headerParkedAt     = "waybill-parked-at"
)

// counters are the headers of Waybill that a copy does not take over.
var counters = map[string]bool{
	headerAttempt: true, headerRedeliveries: true, headerError: true, headerDue: true, headerReason: true, headerQueue: true,
	headerParkedAt: true,
}

// encode returns e as a record for topic. It shares no memory with e.
func encode(topic string, e *waybill.Envelope) *kgo.Record {
	var list [24]core.Attribute
	attrs := core.AppendAttributes(list[:0], e)
	size := len(e.Body) + len(e.Key) + len(e.Topic) + len(e.ContentType) + 4
	for i := range attrs {
		size += len(attrs[i].Value)
	}
	for _, v := range e.Headers {
		size += len(v)
	}
	buf := make([]byte, 0, size) // one allocation for all values
	keep := func(s string) []byte {
		at := len(buf)
		buf = append(buf, s...)
		return buf[at:len(buf):len(buf)]
	}
	h := make([]kgo.RecordHeader, 0, len(attrs)+3+len(e.Headers))
	for _, a := range attrs {
		name := a.Name
		if name != core.AttrTraceParent && name != core.AttrTraceState {
			name = prefixCE + name
		}
		h = append(h, kgo.RecordHeader{Key: name, Value: keep(a.Value)})
	}
	h = append(h, kgo.RecordHeader{Key: prefixCE + core.AttrTopic, Value: keep(e.Topic)})
	if e.ContentType != "" {
		h = append(h, kgo.RecordHeader{Key: contentType, Value: keep(e.ContentType)})
	}
	if e.Priority > 0 {
		h = append(h, kgo.RecordHeader{Key: headerPriority, Value: keep(strconv.Itoa(int(e.Priority)))})
	}
	for name, value := range e.Headers {
		if name == contentType || strings.HasPrefix(name, prefixCE) {
			name = prefixHeader + name
		}
		h = append(h, kgo.RecordHeader{Key: name, Value: keep(value)})
	}
	rec := &kgo.Record{Topic: topic, Headers: h}
	if e.Key != "" {
		rec.Key = keep(e.Key)
	}
	at := len(buf)
	buf = append(buf, e.Body...)
	rec.Value = buf[at:len(buf):len(buf)]
	return rec
}

// decode returns the envelope of a record. It shares no memory with it. A record that Waybill has not made comes with
// the attributes that it has; its key is the record's.
func decode(rec *kgo.Record) waybill.Envelope {
	e := waybill.Envelope{Body: append([]byte(nil), rec.Value...)}
	for _, h := range rec.Headers {
		read(&e, h.Key, string(h.Value))
	}
	if e.Key == "" {
		e.Key = string(rec.Key)
	}
	return e
}

// read puts one header where it belongs.
func read(e *waybill.Envelope, name, value string) {
	attr, isCE := strings.CutPrefix(name, prefixCE)
	own, isHeader := strings.CutPrefix(name, prefixHeader)
	switch {
	case name == core.AttrTraceParent, name == core.AttrTraceState:
		_, _ = core.SetAttribute(e, name, value)
		return
	case name == contentType:
		e.ContentType = value
		return
	case isCE:
		if known, err := core.SetAttribute(e, attr, value); known && err == nil {
			return
		} // else it stays as a header
	case isHeader:
		name = own
	case name == headerPriority:
		if n, err := strconv.ParseUint(value, 10, 8); err == nil && n <= 9 {
			e.Priority = uint8(n)
		}
		return
	case waybill.ReservedHeader(name):
		return
	}
	if e.Headers == nil {
		e.Headers = make(map[string]string, 4)
	}
	e.Headers[name] = value
}

// copyOf returns a copy of a record for topic, without the counters. A record with a null value stays one.
func copyOf(topic string, rec *kgo.Record) *kgo.Record {
	c := &kgo.Record{Topic: topic, Key: rec.Key, Value: rec.Value, Headers: make([]kgo.RecordHeader, 0, len(rec.Headers)+6)}
	for _, h := range rec.Headers {
		if !counters[h.Key] {
			c.Headers = append(c.Headers, h)
		}
	}
	return c
}

func set(rec *kgo.Record, name, value string) {
	if value != "" {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
}

func setNumber(rec *kgo.Record, name string, n int64) {
	if n > 0 {
		set(rec, name, strconv.FormatInt(n, 10))
	}
}

// get returns the value of a header, or "".
func get(rec *kgo.Record, name string) string {
	for _, h := range rec.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// number returns a header's value as a number that is not negative, or 0.
func number(rec *kgo.Record, name string) int64 {
	n, err := strconv.ParseInt(get(rec, name), 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// due returns when a retry is due; zero = at once.
func due(rec *kgo.Record) time.Time {
	if ms := number(rec, headerDue); ms > 0 {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}

// sizeOf is an upper bound of the bytes of a record in a batch of its own.
func sizeOf(rec *kgo.Record) int {
	n := 128 + len(rec.Key) + len(rec.Value)
	for _, h := range rec.Headers {
		n += 8 + len(h.Key) + len(h.Value)
	}
	return n
}
