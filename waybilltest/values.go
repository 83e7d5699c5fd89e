package waybilltest

import (
	"slices"

	"github.com/waybill-go/waybill"
)

// Messages is the place where messages went: an [*Env], with the sent ones, or a [*Recorder], with the staged ones.
type Messages interface {
	test() TB
	messages() []waybill.Envelope
}

// Values returns what went out on topic, in order; of retries the first attempt only. It fails the test if a body
// cannot be decoded.
func Values[T any](from Messages, topic waybill.Topic[T]) []T {
	tb := from.test()
	tb.Helper()
	var out []T
	for _, e := range from.messages() {
		if e.Topic != topic.Name() {
			continue
		}
		v, err := topic.Decode(&e)
		if err != nil {
			tb.Fatalf("waybilltest: %v", err)
		}
		out = append(out, v)
	}
	return out
}

// Require returns the value of the only message on topic. It fails the test if there is none, or more than one.
func Require[T any](from Messages, topic waybill.Topic[T]) T {
	tb := from.test()
	tb.Helper()
	values := Values(from, topic)
	if len(values) == 0 {
		var topics []string
		for _, e := range from.messages() {
			topics = append(topics, e.Topic)
		}
		slices.Sort(topics)
		tb.Fatalf("waybilltest: no message on topic %q; there are messages on %q", topic.Name(), slices.Compact(topics))
	}
	if len(values) > 1 {
		tb.Fatalf("waybilltest: %d messages on topic %q, want one: %+v", len(values), topic.Name(), values)
	}
	return values[0]
}
