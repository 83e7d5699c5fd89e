package nats

import (
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// The names on the wire; docs/wire-format.md is the reference, and a golden test pins them.
const (
	prefixCE           = "ce-"
	prefixHeader       = "waybill-header-" // an application's header whose name or value NATS cannot carry
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

// encode returns e as a message for subject. It shares the body.
func encode(subject string, e *waybill.Envelope) *nats.Msg {
	h := make(nats.Header, 12+len(e.Headers))
	var buf [24]core.Attribute
	for _, a := range core.AppendAttributes(buf[:0], e) {
		if a.Name == core.AttrTraceParent || a.Name == core.AttrTraceState {
			h[a.Name] = []string{a.Value}
		} else {
			setAttribute(h, a.Name, a.Value)
		}
	}
	setAttribute(h, core.AttrContentType, e.ContentType)
	if escapeTopic(e.Topic) != e.Topic {
		setAttribute(h, core.AttrTopic, e.Topic)
	}
	if e.Priority > 0 {
		h[headerPriority] = []string{strconv.Itoa(int(e.Priority))}
	}
	for name, value := range e.Headers {
		if !carried(name, value) {
			name, value = prefixHeader+escape(name, notToken), escapeValue(value)
		}
		h[name] = []string{value}
	}
	return &nats.Msg{Subject: subject, Header: h, Data: e.Body}
}

func setAttribute(h nats.Header, name, value string) {
	if value != "" {
		h[prefixCE+name] = []string{escapeValue(value)}
	}
}

// escapeValue is the percent-encoding of CloudEvents' NATS binding.
func escapeValue(s string) string {
	return escape(s, func(c byte) bool { return c <= ' ' || c > '~' || c == '"' })
}

// notToken reports whether c cannot stand in a header's name: the client drops such headers.
func notToken(c byte) bool {
	return (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && strings.IndexByte("!#$&'*+-.^_`|~", c) < 0
}

// carried reports whether NATS carries a header as it is. It cuts blanks off values, and turns line ends into blanks.
// The server takes Nats-... for commands, and the client Status and Description for an answer.
func carried(name, value string) bool {
	for i := range len(name) {
		if name[i] != '%' && notToken(name[i]) {
			return false
		}
	}
	switch lower := strings.ToLower(name); {
	case name == "", strings.HasPrefix(lower, "nats-"), lower == "status", lower == "description":
		return false
	}
	return strings.Trim(value, " ") == value && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// decode returns the envelope of a message with the subject of topic; empty = it is in the attribute. A message that
// Waybill has not made comes with the attributes that it has.
func decode(topic string, h nats.Header, body []byte) waybill.Envelope {
	e := waybill.Envelope{Body: body}
	for name, values := range h {
		read(&e, name, strings.Join(values, ", "))
	}
	if topic != "" {
		e.Topic = unescape(topic)
	}
	if e.ID == "" {
		e.ID = h.Get(nats.MsgIdHdr)
	}
	return e
}

// read puts one header where it belongs. Headers of the server and of Waybill stay in the raw message.
func read(e *waybill.Envelope, name, value string) {
	attr, isCE := strings.CutPrefix(name, prefixCE)
	escaped, isHeader := strings.CutPrefix(name, prefixHeader)
	switch {
	case name == core.AttrTraceParent, name == core.AttrTraceState:
		_, _ = core.SetAttribute(e, name, value)
		return
	case isCE:
		if known, err := core.SetAttribute(e, attr, unescape(value)); known && err == nil {
			return
		} // else it stays as a header
	case isHeader:
		name, value = unescape(escaped), unescape(value)
	case name == headerPriority:
		if n, err := strconv.ParseUint(value, 10, 8); err == nil && n <= 9 {
			e.Priority = uint8(n)
		}
		return
	case strings.HasPrefix(name, "Nats-"), waybill.ReservedHeader(name):
		return
	}
	if e.Headers == nil {
		e.Headers = make(map[string]string, 4)
	}
	e.Headers[name] = value
}

// copyOf returns the message of e, which came with the headers h, for subject: every header but the server's own and
// Waybill's counters.
func copyOf(subject string, e *waybill.Envelope, h nats.Header, body []byte) *nats.Msg {
	out := make(nats.Header, len(h)+6)
	for name, values := range h {
		if !counters[name] && !strings.HasPrefix(name, "Nats-") {
			out[name] = values
		}
	}
	setAttribute(out, core.AttrID, e.ID)
	setAttribute(out, core.AttrTopic, e.Topic)
	return &nats.Msg{Subject: subject, Header: out, Data: body}
}

// number returns a header's value as a number that is not negative, or 0.
func number(h nats.Header, name string) int64 {
	n, err := strconv.ParseInt(h.Get(name), 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

func setNumber(h nats.Header, name string, n int64) {
	if n > 0 {
		h[name] = []string{strconv.FormatInt(n, 10)}
	}
}

// due returns when a retry is due; zero = at once.
func due(h nats.Header) time.Time {
	if ms := number(h, headerDue); ms > 0 {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}
