package obs

import (
	"strconv"

	"go.opentelemetry.io/otel/trace"
)

const hexDigits = "0123456789abcdef"

// TraceParent returns the W3C traceparent of sc.
func TraceParent(sc trace.SpanContext) string {
	tid, sid, flags := sc.TraceID(), sc.SpanID(), byte(sc.TraceFlags())
	b := make([]byte, 0, 55)
	b = append(b, "00-"...)
	for _, c := range tid {
		b = append(b, hexDigits[c>>4], hexDigits[c&15])
	}
	b = append(b, '-')
	for _, c := range sid {
		b = append(b, hexDigits[c>>4], hexDigits[c&15])
	}
	return string(append(b, '-', hexDigits[flags>>4], hexDigits[flags&15]))
}

// SpanContext returns the remote span context of a W3C traceparent and tracestate; invalid if they name none.
func SpanContext(parent, state string) trace.SpanContext {
	p := parent
	if len(p) < 55 || p[2] != '-' || p[35] != '-' || p[52] != '-' || p[:2] == "ff" || p[:2] == "00" && len(p) != 55 {
		return trace.SpanContext{}
	}
	tid, err1 := trace.TraceIDFromHex(p[3:35])
	sid, err2 := trace.SpanIDFromHex(p[36:52])
	flags, err3 := strconv.ParseUint(p[53:55], 16, 8)
	if err1 != nil || err2 != nil || err3 != nil {
		return trace.SpanContext{}
	}
	ts, _ := trace.ParseTraceState(state) // a bad tracestate is dropped, as W3C asks
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: tid, SpanID: sid, TraceFlags: trace.TraceFlags(flags & 1), TraceState: ts, Remote: true,
	})
}
