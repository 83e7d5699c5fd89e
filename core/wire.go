package core

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/hlc"
)

// The names of the attributes that travel beside the body: CloudEvents 1.0 context attributes, its partitioning
// extension, and Waybill's own extensions. Transports add a prefix ("cloudEvents_" on AMQP, "ce_" in Redis).
// traceparent and tracestate travel without a prefix, as W3C says. The content type travels in the broker's own
// property if it has one. docs/wire-format.md is the reference.
const (
	AttrSpecVersion   = "specversion" // always "1.0"
	AttrID            = "id"
	AttrSource        = "source"
	AttrType          = "type"
	AttrSubject       = "subject"
	AttrTime          = "time" // RFC 3339
	AttrContentType   = "datacontenttype"
	AttrTopic         = "topic" // only where the transport has no routing key, or it was replaced on the way
	AttrKey           = "partitionkey"
	AttrCorrelationID = "correlationid"
	AttrCausationID   = "causationid"
	AttrTenant        = "tenant"
	AttrRunID         = "runid"      // Envelope.RunID: of the workflow or batch that staged the message
	AttrLineage       = "lineage"    // Envelope.Lineage: ids separated by commas, each query-escaped
	AttrHLC           = "hlc"        // as hlc.Timestamp's text
	AttrExpires       = "expirytime" // RFC 3339
	AttrTraceParent   = "traceparent"
	AttrTraceState    = "tracestate"
)

// SpecVersion is the CloudEvents version on the wire.
const SpecVersion = "1.0"

// Attribute is one attribute by name.
type Attribute struct{ Name, Value string }

// AppendAttributes appends the attributes of e that are set, specversion first, without AttrTopic and AttrContentType,
// which transports place themselves. Neither the priority nor the headers are attributes.
func AppendAttributes(dst []Attribute, e *waybill.Envelope) []Attribute {
	add := func(name, value string) {
		if value != "" {
			dst = append(dst, Attribute{name, value})
		}
	}
	add(AttrSpecVersion, SpecVersion)
	add(AttrID, e.ID)
	add(AttrSource, e.Source)
	add(AttrType, e.Type)
	add(AttrSubject, e.Subject)
	if !e.Time.IsZero() {
		add(AttrTime, e.Time.UTC().Format(time.RFC3339Nano))
	}
	add(AttrKey, e.Key)
	add(AttrCorrelationID, e.CorrelationID)
	add(AttrCausationID, e.CausationID)
	add(AttrTenant, e.Tenant)
	add(AttrRunID, e.RunID)
	if len(e.Lineage) > 0 {
		add(AttrLineage, joinLineage(e.Lineage))
	}
	if !e.HLC.IsZero() {
		add(AttrHLC, e.HLC.String())
	}
	if !e.Expires.IsZero() {
		add(AttrExpires, e.Expires.UTC().Format(time.RFC3339Nano))
	}
	add(AttrTraceParent, e.TraceParent)
	add(AttrTraceState, e.TraceState)
	return dst
}

// SetAttribute sets the field of e for the attribute name (without prefix), and reports whether there is such a field.
// An unreadable value is an error, and the field keeps its value. A foreign producer's odd time or stamp is no reason
// to lose a message, so callers keep such an attribute as a header.
func SetAttribute(e *waybill.Envelope, name, value string) (known bool, err error) {
	switch name {
	case AttrSpecVersion:
		return true, nil
	case AttrTime:
		return true, setTime(&e.Time, name, value)
	case AttrExpires:
		return true, setTime(&e.Expires, name, value)
	case AttrHLC:
		ts, err := hlc.Parse(value)
		if err != nil {
			return true, fmt.Errorf("attribute %s: %w", name, err)
		}
		e.HLC = ts
		return true, nil
	case AttrLineage:
		e.Lineage = splitLineage(value)
		return true, nil
	}
	field := textField(e, name)
	if field == nil {
		return false, nil
	}
	*field = value
	return true, nil
}

// textField returns the text field of e for the attribute name, or nil.
func textField(e *waybill.Envelope, name string) *string {
	switch name {
	case AttrID:
		return &e.ID
	case AttrSource:
		return &e.Source
	case AttrType:
		return &e.Type
	case AttrSubject:
		return &e.Subject
	case AttrContentType:
		return &e.ContentType
	case AttrTopic:
		return &e.Topic
	case AttrKey:
		return &e.Key
	case AttrCorrelationID:
		return &e.CorrelationID
	case AttrCausationID:
		return &e.CausationID
	case AttrTenant:
		return &e.Tenant
	case AttrRunID:
		return &e.RunID
	case AttrTraceParent:
		return &e.TraceParent
	case AttrTraceState:
		return &e.TraceState
	}
	return nil
}

func setTime(p *time.Time, name, value string) error {
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		return fmt.Errorf("attribute %s is not an RFC 3339 time", name)
	}
	*p = t.UTC()
	return nil
}

func joinLineage(ids []string) string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = url.QueryEscape(id)
	}
	return strings.Join(out, ",")
}

func splitLineage(s string) []string {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	if len(parts) > waybill.MaxLineage {
		head := waybill.MaxLineage / 2
		tail := waybill.MaxLineage - head - 1
		parts = slices.Concat(parts[:head], []string{waybill.LineageCut}, parts[len(parts)-tail:])
	}
	for i, p := range parts {
		if id, err := url.QueryUnescape(p); err == nil {
			parts[i] = id
		}
	}
	return parts
}
