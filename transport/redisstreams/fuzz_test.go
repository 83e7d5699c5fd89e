package redisstreams

import (
	"math"
	"strings"
	"testing"
)

// FuzzDecode reads anything that a producer can add to a stream: names and values, divided by zero bytes.
func FuzzDecode(f *testing.F) { // SE-08
	f.Add("ce_id\x001\x00ce_topic\x00orders.placed\x00data\x00body", "1-1")
	f.Add("waybill-attempt\x009223372036854775807\x00waybill-redeliveries\x00-1\x00waybill-priority\x00300", "x-1")
	f.Add("waybill-parked-at\x00x\x00waybill-queue\x00other\x00traceparent\x00x", "99999999999999999999-1")
	f.Add("ce_expirytime\x009999-12-31T23:59:59Z\x00ce_\x00\x00header_\x00", "")
	f.Add("odd", "1-1")
	f.Fuzz(func(t *testing.T, text, id string) {
		var fields []any
		size := 0
		for part := range strings.SplitSeq(text, "\x00") {
			fields = append(fields, part)
			size += len(part)
		}
		e, m := decode(fields, "q")
		if m.attempt < 1 || m.attempt > math.MaxInt32 || m.redeliveries < 0 || m.redeliveries > math.MaxInt32 || e.Priority > 9 || e.Topic == "" {
			t.Errorf("attempt %d, redeliveries %d, priority %d, topic %q", m.attempt, m.redeliveries, e.Priority, e.Topic)
		}
		if n := len(e.Headers); n > len(fields)/2 || len(e.Body) > size {
			t.Errorf("%d headers and %d bytes of %d fields with %d", n, len(e.Body), len(fields), size)
		}
		if p := parkedOf(entry{id, append(fields, nil)}, "q", 1); p.Queue == "" {
			t.Error("a parked message is in no queue")
		}
	})
}

// FuzzBinding reads anything that a consumer with the right to bind can add to the set of bindings.
func FuzzBinding(f *testing.F) { // SE-08
	for _, text := range []string{`["q","a.*"]`, `["q"]`, `null`, `[null,null]`, `["","\ud800"]`, `{}`, `[`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		queue, binding, ok := parseBinding(text)
		if !ok {
			return
		}
		if q, b, ok := parseBinding(bindingOf(queue, binding)); !ok || q != queue || b != binding {
			t.Errorf("%q, %q is written as %q, %q", queue, binding, q, b)
		}
	})
}
