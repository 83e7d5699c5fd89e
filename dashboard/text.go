package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
)

// functions are what templates call.
var functions = template.FuncMap{
	"count": count, "short": short, "reason": reasonText, "clip": clip, "when": when, "stamp": func(t time.Time) string { return t.Format(time.RFC3339Nano) }, "plural": func(n int, s string) string { return plural(int64(n), s) },
	"behind": behind,
	"active": func(page, of string) bool {
		return page == of || page == "message" && of == "messages" || page == "parkedmessage" && of == "parked"
	},
}

func urlquery(s string) string { return url.QueryEscape(s) }

// count shows a number with spaces between the thousands.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

func rate(v float64) string {
	if v != 0 && v < 10 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return count(int64(v + 0.5))
}

// short shows a duration in its largest unit or two.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "–"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm %ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh %dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd %dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return count(n) + " " + what + "s"
}

// behind says how many messages wait.
func behind(n int) string {
	if n == admin.MaxPageLimit {
		return count(int64(n)) + " messages or more wait"
	}
	return plural(int64(n), "message") + " " + waitWaits(int64(n))
}

func waitWaits(n int64) string {
	if n == 1 {
		return "waits"
	}
	return "wait"
}

func lookAt(n int64) string {
	if n == 1 {
		return "Look at it"
	}
	return "Look at them"
}

func isAre(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// clip cuts a text to n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// reasonText says in words why a message was given up.
func reasonText(r waybill.Reason) string {
	if s, ok := map[waybill.Reason]string{
		waybill.ReasonRejected: "it was refused for good", waybill.ReasonAttempts: "all attempts are spent",
		waybill.ReasonUndecodable: "it cannot be read", waybill.ReasonTooLarge: "it is larger than the broker takes",
		waybill.ReasonForbidden: "the broker denied permission", waybill.ReasonUnroutable: "no queue is bound for its topic",
		waybill.ReasonExpired: "its time was over", waybill.ReasonCrashed: "too many relays died with it",
		waybill.ReasonCancelled: "the application cancelled it", waybill.ReasonReplaced: "a newer one took its place",
		waybill.ReasonSkipped: "an operator skipped it", waybill.ReasonSetAside: "an operator put it aside",
		waybill.ReasonDeliveries: "it was delivered too often without an outcome", waybill.ReasonNoHandler: "no handler is for its topic",
		waybill.ReasonNoID: "it has no id", waybill.ReasonIDConflict: "it has two ids", waybill.ReasonRetryPolicy: "the retry policy failed",
	}[r]; ok {
		return s
	}
	return string(r)
}

// refusalText says in words why a message is not sent again.
func refusalText(cause string) string {
	switch cause {
	case admin.RefusedExpired:
		return "the time of the message is over"
	case admin.RefusedOrder:
		return "later messages of the same key can have been sent, so it would come out of order"
	case admin.RefusedDuplicate:
		return "the outbox has the message again already"
	}
	return cause
}

const (
	// maxBody is how many bytes of a body are shown.
	maxBody = 256 << 10
	// maxIndented is how many bytes JSON may have with its blanks; otherwise it is shown as it is.
	maxIndented = 2 * maxBody
)

// body is what is shown of a payload.
type body struct {
	Kind, Text, Note string
}

// show returns the part of a body that may be shown.
func (d *Dashboard) show(e *waybill.Envelope) body {
	if !d.opts.ShowBodies {
		return body{Note: fmt.Sprintf("%s of %s. Bodies are not shown here: Options.ShowBodies allows it.", plural(int64(len(e.Body)), "byte"), orNone(e.ContentType))}
	}
	raw := e.Body
	if d.opts.Mask != nil {
		raw = d.opts.Mask(e)
	}
	b := body{Kind: "text"}
	if len(raw) > maxBody {
		b.Note = fmt.Sprintf("The first %s of %s bytes.", count(maxBody), count(int64(len(raw))))
		whole := raw
		if raw = raw[:maxBody]; utf8.Valid(whole) {
			raw = bytes.ToValidUTF8(raw, nil) // the cut may be within a letter
		}
	}
	var pretty bytes.Buffer
	switch {
	case len(raw) == 0:
		return body{Note: "The body is empty."}
	case indented(raw) <= maxIndented && json.Indent(&pretty, raw, "", "  ") == nil:
		b.Kind, b.Text = "json", pretty.String()
	case utf8.Valid(raw) && !bytes.ContainsFunc(raw, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' }):
		b.Text = string(raw)
	default:
		b.Kind, b.Text = "hex", hexDump(raw)
	}
	return b
}

// indented returns how many bytes JSON has at most when it is indented.
func indented(raw []byte) int {
	size, depth := len(raw), 0
	for _, c := range raw {
		switch c {
		case '[', '{':
			depth++
			size += 1 + 2*depth
		case ']', '}':
			depth--
			size += 1 + 2*max(depth, 0)
		case ',':
			size += 1 + 2*max(depth, 0)
		case ':':
			size++
		}
	}
	return size
}

func orNone(contentType string) string {
	if contentType == "" {
		return "no stated type"
	}
	return contentType
}

// hexDump shows the first 4 KiB.
func hexDump(raw []byte) string {
	var b strings.Builder
	for i := 0; i < min(len(raw), 4096); i += 16 {
		part := raw[i:min(i+16, len(raw))]
		_, _ = fmt.Fprintf(&b, "%06x  % -48x  ", i, part)
		for _, c := range part {
			if c < ' ' || c > '~' {
				c = '.'
			}
			b.WriteByte(c)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
