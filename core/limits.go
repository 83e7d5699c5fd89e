package core

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits bounds what can be staged. Zero fields mean the default.
type Limits struct {
	// MaxBodyBytes bounds a body; default 1 MiB, at most 128 MiB.
	MaxBodyBytes int
	// MaxHeaders bounds the number of headers; default 64.
	MaxHeaders int
	// MaxHeaderBytes bounds the sum of header names and values; default 16 KiB.
	MaxHeaderBytes int
	// MaxDelay bounds how far in the future a message may be due; default 10 years.
	MaxDelay time.Duration
}

// MaxNameBytes bounds ids, topics, types, sources, keys, routes and the like: what an AMQP short string holds.
const MaxNameBytes = 255

// MaxMessages bounds the messages of one Stage call.
const MaxMessages = 10_000

const (
	defaultMaxBody        = 1 << 20
	maxMaxBody            = 128 << 20
	defaultMaxHeaders     = 64
	defaultMaxHeaderBytes = 16 << 10
	defaultMaxDelay       = 10 * 366 * 24 * time.Hour
)

func (l Limits) withDefaults() Limits {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&l.MaxBodyBytes, defaultMaxBody)
	set(&l.MaxHeaders, defaultMaxHeaders)
	set(&l.MaxHeaderBytes, defaultMaxHeaderBytes)
	if l.MaxDelay == 0 {
		l.MaxDelay = defaultMaxDelay
	}
	return l
}

// Validate reports all problems of l, prefixed with field.
func (l Limits) Validate(field string) []string {
	var p []string
	if l.MaxBodyBytes < 0 || l.MaxBodyBytes > maxMaxBody {
		p = append(p, fmt.Sprintf("%s.MaxBodyBytes: %d is not between 0 (default) and %d", field, l.MaxBodyBytes, maxMaxBody))
	}
	for _, n := range [...]struct {
		name  string
		value int
	}{{"MaxHeaders", l.MaxHeaders}, {"MaxHeaderBytes", l.MaxHeaderBytes}} {
		if n.value < 0 {
			p = append(p, fmt.Sprintf("%s.%s: %d is negative; leave it 0 for the default", field, n.name, n.value))
		}
	}
	if l.MaxDelay < 0 {
		p = append(p, fmt.Sprintf("%s.MaxDelay: %s is negative; leave it 0 for the default", field, l.MaxDelay))
	}
	return p
}

// reserved header names, compared in lower case: they would collide with what transports write.
var (
	reservedNames    = []string{"traceparent", "tracestate", "x-death", "x-acquired-count"}
	reservedPrefixes = []string{"cloudevents_", "cloudevents:", "ce_", "ce-", "waybill-", "x-first-death-", "x-last-death-", "x-delivery-"}
)

// ReservedHeader reports whether name belongs to Waybill or to a broker, so that an application cannot set it.
func ReservedHeader(name string) bool {
	n := strings.ToLower(name)
	if slices.Contains(reservedNames, n) {
		return true
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(n, p) {
			return true
		}
	}
	return false
}

// CheckTopic returns what is wrong with a topic name, or "".
func CheckTopic(name string) string {
	switch {
	case name == "":
		return "is empty; name the routing key, such as \"orders.placed\""
	case strings.ContainsAny(name, "*#"):
		return fmt.Sprintf("%q holds a wildcard; only bindings may", clip(name, 80))
	}
	return checkName(name)
}

// CheckName returns what is wrong with a name that must be storable and sendable everywhere, or "". Empty is fine.
func CheckName(s string) string { return checkName(s) }

func checkName(s string) string {
	if len(s) > MaxNameBytes {
		return fmt.Sprintf("has %d bytes; at most %d are allowed: shorten it", len(s), MaxNameBytes)
	}
	return checkText(s)
}

func checkText(s string) string {
	if !utf8.ValidString(s) {
		return fmt.Sprintf("%q is not valid UTF-8: encode it, as base64 say", clip(s, 80))
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return fmt.Sprintf("%q holds the control character 0x%02x: remove it", clip(s, 80), s[i])
		}
	}
	return ""
}

// check appends the problems of m, prefixed with where.
func (l *Limits) check(p []string, where string, m *Message, now time.Time) []string {
	bad := func(field, problem string) { p = append(p, where+field+": "+problem) }
	if m.err != nil {
		bad("Body", m.err.Error())
	}
	if s := CheckTopic(m.Topic); s != "" {
		bad("Topic", s)
	}
	for _, f := range [...]struct{ name, value string }{
		{"ID", m.ID},
		{"Type", m.Type},
		{"Source", m.Source},
		{"Subject", m.Subject},
		{"ContentType", m.ContentType},
		{"Key", m.Key},
		{"Tenant", m.Tenant},
		{"CorrelationID", m.CorrelationID},
		{"CausationID", m.CausationID},
		{"RunID", m.RunID},
		{"DedupeKey", m.DedupeKey},
	} {
		if f.value != "" {
			if s := checkName(f.value); s != "" {
				bad(f.name, s)
			}
		}
	}
	for i, r := range m.Routes {
		if r == "" {
			bad(fmt.Sprintf("Routes[%d]", i), "is empty")
		} else if strings.Contains(r, "/") {
			bad(fmt.Sprintf("Routes[%d]", i), fmt.Sprintf("%q holds a slash, which stands before a lane; use Lane, or another name", clip(r, 80)))
		} else if s := checkName(r); s != "" {
			bad(fmt.Sprintf("Routes[%d]", i), s)
		}
	}
	if m.Replace && m.DedupeKey == "" {
		bad("Replace", "needs a DedupeKey: it says which message to replace")
	}
	if m.Lane != LaneNormal && m.Lane != LaneHigh && m.Lane != LaneLow {
		bad("Lane", fmt.Sprintf("%q is not a lane; use LaneHigh, LaneNormal or LaneLow", clip(string(m.Lane), 80)))
	}
	if len(m.Lineage) > MaxLineage {
		bad("Lineage", fmt.Sprintf("has %d ids; at most %d are allowed", len(m.Lineage), MaxLineage))
	}
	p = checkLineage(p, where, m.Lineage)
	if len(m.Body) > l.MaxBodyBytes {
		bad("Body", fmt.Sprintf("has %d bytes; at most %d are allowed: raise Limits.MaxBodyBytes, or store the content elsewhere and send a reference",
			len(m.Body), l.MaxBodyBytes))
	}
	if m.Priority > 9 {
		bad("Priority", fmt.Sprintf("%d is more than 9", m.Priority))
	}
	return l.checkTimes(l.checkHeaders(p, where, m.Headers), where, m, now)
}

// check appends the problems of what messages inherit from their context.
func (s *Scope) check(p []string) []string {
	for _, f := range [...]struct{ name, value string }{
		{"CorrelationID", s.CorrelationID}, {"CausationID", s.CausationID}, {"Tenant", s.Tenant}, {"RunID", s.RunID},
	} {
		if t := checkName(f.value); t != "" {
			p = append(p, "context."+f.name+": "+t)
		}
	}
	return checkLineage(p, "context.", s.Lineage)
}

func checkLineage(p []string, where string, ids []string) []string {
	for i, id := range ids {
		if t := checkName(id); t != "" {
			p = append(p, fmt.Sprintf("%sLineage[%d]: %s", where, i, t))
		}
	}
	return p
}

func (l *Limits) checkHeaders(p []string, where string, h map[string]string) []string {
	if len(h) > l.MaxHeaders {
		p = append(p, fmt.Sprintf("%sHeaders: %d headers; at most %d are allowed: raise Limits.MaxHeaders, or use the body", where, len(h), l.MaxHeaders))
	}
	size := 0
	for name, value := range h {
		size += len(name) + len(value)
		at := fmt.Sprintf("%sHeaders[%q]: ", where, clip(name, 80))
		switch {
		case name == "":
			p = append(p, where+"Headers: a header has an empty name")
		case ReservedHeader(name):
			p = append(p, at+"the name is reserved for Waybill or the broker; choose another")
		case len(name) > MaxNameBytes:
			p = append(p, fmt.Sprintf("%sthe name has %d bytes; at most %d are allowed", at, len(name), MaxNameBytes))
		default:
			if s := checkText(name); s != "" {
				p = append(p, at+"the name "+s)
			}
		}
		if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			p = append(p, at+"the value is not valid UTF-8 without NUL: encode it, as base64 say")
		}
	}
	if size > l.MaxHeaderBytes {
		p = append(p, fmt.Sprintf("%sHeaders: %d bytes in all; at most %d are allowed: raise Limits.MaxHeaderBytes, or use the body", where, size, l.MaxHeaderBytes))
	}
	return p
}

func (l *Limits) checkTimes(p []string, where string, m *Message, now time.Time) []string {
	bad := func(field, format string, a ...any) { p = append(p, where+field+": "+fmt.Sprintf(format, a...)) }
	if !m.DeliverAt.IsZero() && m.Delay != 0 {
		bad("DeliverAt", "set together with Delay; choose one")
	}
	if !m.Expires.IsZero() && m.TTL != 0 {
		bad("Expires", "set together with TTL; choose one")
	}
	if m.Delay < 0 {
		bad("Delay", "%s is negative; leave it 0 for at once", m.Delay)
	}
	if m.Delay > l.MaxDelay {
		bad("Delay", "%s is more than Limits.MaxDelay %s; shorten it or raise the limit", m.Delay, l.MaxDelay)
	}
	if !m.DeliverAt.IsZero() {
		if y := m.DeliverAt.Year(); y < 2000 {
			bad("DeliverAt", "%s is in the far past; leave it zero for at once", m.DeliverAt.Format(time.RFC3339))
		} else if m.DeliverAt.Sub(now) > l.MaxDelay {
			bad("DeliverAt", "year %d is beyond Limits.MaxDelay %s; choose an earlier time or raise the limit", y, l.MaxDelay)
		}
	}
	if !m.Expires.IsZero() && !now.Before(m.Expires) {
		bad("Expires", "%s has passed already; choose a later time", m.Expires.Format(time.RFC3339))
	}
	if y := m.Expires.UTC().Year(); !m.Expires.IsZero() && y > 9999 {
		bad("Expires", "year %d cannot be sent; leave it zero for never", y)
	}
	if y := m.Time.Year(); !m.Time.IsZero() && (y < 1 || y > 9999) {
		bad("Time", "year %d cannot be stored", y)
	}
	return p
}
