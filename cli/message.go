package cli

import (
	"encoding/hex"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
)

// fieldText is a line of a message that is shown; an empty text is left out.
type fieldText struct{ name, text string }

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// messageFields are the lines of a message, its headers at the end.
func messageFields(e *waybill.Envelope) []fieldText {
	fields := []fieldText{
		{"id", e.ID},
		{"topic", e.Topic},
		{"type", e.Type},
		{"source", e.Source},
		{"subject", e.Subject},
		{"key", e.Key},
		{"tenant", e.Tenant},
		{"time", stamp(e.Time)},
		{"expires", stamp(e.Expires)},
		{"correlation id", e.CorrelationID},
		{"causation id", e.CausationID},
		{"run id", e.RunID},
		{"lineage", strings.Join(e.Lineage, " ")},
		{"traceparent", e.TraceParent},
		{"tracestate", e.TraceState},
		{"content type", e.ContentType},
	}
	for _, name := range sortedKeys(e.Headers) {
		fields = append(fields, fieldText{"header " + name, e.Headers[name]})
	}
	return fields
}

func (c *command) showFields(fields []fieldText) error {
	w := tabwriter.NewWriter(c.io.Out, 2, 8, 2, ' ', 0)
	for _, f := range fields {
		if f.text != "" {
			say(w, "%s:\t%s\n", clean(f.name), clean(f.text))
		}
	}
	return w.Flush()
}

// showBody shows a body: as text if it is some, else in hexadecimal.
func (c *command) showBody(body []byte, flags *bodyFlags) {
	say(c.io.Out, "body: %s\n", counted(len(body), "byte"))
	shown := body[:min(len(body), flags.most)]
	if text := string(body); isText(text) {
		for len(shown) < len(body) && len(shown) > 0 && !utf8.RuneStart(body[len(shown)]) {
			shown = shown[:len(shown)-1]
		}
		say(c.io.Out, "%s", withNewline(cleanLines(string(shown))))
	} else {
		say(c.io.Out, "%s", hex.Dump(shown))
	}
	if len(shown) < len(body) {
		say(c.io.Out, "... and %s: see --body-bytes and --body-to\n", counted(len(body)-len(shown), "more byte"))
	}
}

func withNewline(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// isText reports whether s can be shown as it is, but for tabs and ends of lines.
func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unsafe(r) && !strings.ContainsRune("\n\r\t", r) })
}
