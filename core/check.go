package core

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// checkMessage appends the problems of m, prefixed with where.
func checkMessage(p []string, where string, l *waybill.Limits, m *waybill.Message, now time.Time) []string {
	bad := func(field, problem string) { p = append(p, where+field+": "+problem) }
	if err := m.EncodeError(); err != nil {
		bad("Body", err.Error())
	}
	if s := check.Topic(m.Topic); s != "" {
		bad("Topic", s)
	}
	for _, f := range [...]struct{ name, value string }{
		{"ID", m.ID},
		{"Type", m.Type},
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
			if s := check.Name(f.value); s != "" {
				bad(f.name, s)
			}
		}
	}
	if s := check.Source(m.Source); s != "" {
		bad("Source", s)
	}
	for i, r := range m.Routes {
		if r == "" {
			bad(fmt.Sprintf("Routes[%d]", i), "is empty")
		} else if strings.Contains(r, "/") {
			bad(fmt.Sprintf("Routes[%d]", i), fmt.Sprintf(
				"%q holds a slash, which stands before a lane; use Lane, or another name", check.Clip(r, 80)))
		} else if s := check.Name(r); s != "" {
			bad(fmt.Sprintf("Routes[%d]", i), s)
		}
	}
	if m.Replace && m.DedupeKey == "" {
		bad("Replace", "needs a DedupeKey: it says which message to replace")
	}
	if m.Lane != waybill.LaneNormal && m.Lane != waybill.LaneHigh && m.Lane != waybill.LaneLow {
		bad("Lane", fmt.Sprintf("%q is not a lane; use LaneHigh, LaneNormal or LaneLow", check.Clip(string(m.Lane), 80)))
	}
	if len(m.Lineage) > waybill.MaxLineage {
		bad("Lineage", fmt.Sprintf("has %d ids; at most %d are allowed", len(m.Lineage), waybill.MaxLineage))
	}
	p = checkLineage(p, where, m.Lineage)
	if t := tooLarge(l, &m.Envelope); t != "" {
		bad("Body", t)
	}
	if m.Priority > 9 {
		bad("Priority", fmt.Sprintf("%d is more than 9", m.Priority))
	}
	return checkTimes(checkHeaders(p, where, l, m.Headers), where, l, m, now)
}

// tooLarge returns the problem of the size of e, or "".
func tooLarge(l *waybill.Limits, e *waybill.Envelope) string {
	size := e.Size()
	if size <= l.MaxMessageBytes {
		return ""
	}
	return fmt.Sprintf("has %d bytes, and the whole message %d; at most %d are allowed: "+
		"raise Limits.MaxMessageBytes as far as the transports allow, or store the content elsewhere and send a reference",
		len(e.Body), size, l.MaxMessageBytes)
}

// checkScope appends the problems of the values that messages inherit from their context.
func checkScope(p []string, s *waybill.Scope) []string {
	for _, f := range [...]struct{ name, value string }{
		{"CorrelationID", s.CorrelationID}, {"CausationID", s.CausationID}, {"Tenant", s.Tenant}, {"RunID", s.RunID},
	} {
		if t := check.Name(f.value); t != "" {
			p = append(p, "context."+f.name+": "+t)
		}
	}
	return checkLineage(p, "context.", s.Lineage)
}

func checkLineage(p []string, where string, ids []string) []string {
	for i, id := range ids {
		if t := check.Name(id); t != "" {
			p = append(p, fmt.Sprintf("%sLineage[%d]: %s", where, i, t))
		}
	}
	return p
}

func checkHeaders(p []string, where string, l *waybill.Limits, h map[string]string) []string {
	if len(h) > l.MaxHeaders {
		p = append(p, fmt.Sprintf("%sHeaders: %d headers; at most %d are allowed: "+
			"raise Limits.MaxHeaders, or use the body", where, len(h), l.MaxHeaders))
	}
	size := 0
	for name, value := range h {
		size += len(name) + len(value)
		at := fmt.Sprintf("%sHeaders[%q]: ", where, check.Clip(name, 80))
		switch {
		case name == "":
			p = append(p, where+"Headers: a header has an empty name")
		case waybill.ReservedHeader(name):
			p = append(p, at+"the name is reserved for Waybill or the broker; choose another")
		case len(name) > waybill.MaxNameBytes:
			p = append(p, fmt.Sprintf("%sthe name has %d bytes; at most %d are allowed", at, len(name), waybill.MaxNameBytes))
		default:
			if s := check.Text(name); s != "" {
				p = append(p, at+"the name "+s)
			}
		}
		if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			p = append(p, at+"the value is not valid UTF-8 without NUL: encode it, as base64 say")
		}
	}
	if size > l.MaxHeaderBytes {
		p = append(p, fmt.Sprintf("%sHeaders: %d bytes in all; at most %d are allowed: "+
			"raise Limits.MaxHeaderBytes, or use the body", where, size, l.MaxHeaderBytes))
	}
	return p
}

func checkTimes(p []string, where string, l *waybill.Limits, m *waybill.Message, now time.Time) []string {
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
		if y := m.DeliverAt.UTC().Year(); y < 2000 {
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
	if y := m.Time.UTC().Year(); !m.Time.IsZero() && (y < 1 || y > 9999) {
		bad("Time", "year %d cannot be stored", y)
	}
	return p
}

// Bounds of the arguments of stores.
const (
	// MaxInboxKeys bounds the keys of one DoBatch and the marks of one PurgeInbox.
	MaxInboxKeys = 100_000
	// MinCleanLease is the shortest lease of a cleaner.
	MinCleanLease = time.Millisecond
	// MaxCleanLease is the longest lease of a cleaner. A stored lease that ends later than that from now is
	// ignored: a wrong clock wrote it.
	MaxCleanLease = time.Hour
)

// CheckInboxKeys returns an [*waybill.InvalidError] if keys cannot be marked: there are too many of them, or one lacks
// a part. Every method of an inbox that takes keys begins with it.
func CheckInboxKeys(keys ...InboxKey) error {
	if len(keys) > MaxInboxKeys {
		return waybill.Invalid("waybill: inbox",
			fmt.Sprintf("%d keys in one batch; at most %d are allowed: split it", len(keys), MaxInboxKeys))
	}
	var p []string
	for i := range keys {
		where := ""
		if len(keys) > 1 {
			where = fmt.Sprintf("keys[%d].", i)
		}
		for _, f := range [...]struct{ name, value string }{
			{"Consumer", keys[i].Consumer}, {"Source", keys[i].Source}, {"ID", keys[i].ID},
		} {
			if f.value == "" {
				p = append(p, where+f.name+": is empty")
			} else if s := check.Name(f.value); s != "" {
				p = append(p, where+f.name+": "+s)
			}
		}
		if len(p) >= 20 {
			p = append(p, "and maybe more")
			break
		}
	}
	return waybill.Invalid("waybill: inbox key", p...)
}

// CheckPurge returns an [*waybill.InvalidError] that lists every problem of a PurgeInbox. Every inbox begins with it.
func CheckPurge(age time.Duration, limit int) error {
	var p []string
	if age <= 0 {
		p = append(p, fmt.Sprintf("age: %s is not positive; every mark would go, and with it the memory of what was handled", age))
	}
	if limit < 1 || limit > MaxInboxKeys {
		p = append(p, fmt.Sprintf("limit: %d is not between 1 and %d", limit, MaxInboxKeys))
	}
	return waybill.Invalid("waybill: purge the inbox", p...)
}

// CheckClean returns an [*waybill.InvalidError] that lists every problem of a Clean. Every cleaner begins with it.
func CheckClean(owner string, lease time.Duration) error {
	var p []string
	if owner == "" {
		p = append(p, "owner: is empty; name the process that cleans")
	}
	if lease < MinCleanLease || lease > MaxCleanLease {
		p = append(p, fmt.Sprintf("lease: %s is not between %s and %s", lease, MinCleanLease, MaxCleanLease))
	}
	return waybill.Invalid("waybill: clean", p...)
}
