package redisstreams

import (
	"fmt"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// The names of an entry's fields; docs/wire-format.md is the reference and a golden test pins them.
const (
	prefixCE      = "ce_"
	prefixHeader  = "header_"
	fieldBody     = "data"
	fieldPriority = "waybill-priority"
	fieldAttempt  = "waybill-attempt"
	// fieldRedeliveries is read, for entries that another program moved.
	fieldRedeliveries = "waybill-redeliveries"
	fieldError        = "waybill-error"
	fieldReason       = "waybill-reason"
	fieldQueue        = "waybill-queue"
	fieldParkedAt     = "waybill-parked-at"
)

// maxFields bounds an entry: Lua passes on no more than 8,000 values, and copies get some more.
const maxFields = 3500

// fieldNames are the wire names of the known attributes, so that encoding allocates none.
var fieldNames = func() map[string]string {
	m := map[string]string{core.AttrTraceParent: core.AttrTraceParent, core.AttrTraceState: core.AttrTraceState}
	for _, a := range []string{
		core.AttrSpecVersion, core.AttrID, core.AttrSource, core.AttrType, core.AttrSubject, core.AttrTime, core.AttrKey,
		core.AttrCorrelationID, core.AttrCausationID, core.AttrTenant, core.AttrRunID, core.AttrLineage, core.AttrHLC, core.AttrExpires,
	} {
		m[a] = prefixCE + a
	}
	return m
}()

// appendFields appends the fields of e, names and values in turn.
func appendFields(list []string, e *waybill.Envelope) []string {
	var buf [24]core.Attribute
	for _, a := range core.AppendAttributes(buf[:0], e) {
		list = append(list, fieldNames[a.Name], a.Value)
	}
	list = append(list, prefixCE+core.AttrTopic, e.Topic)
	if e.ContentType != "" {
		list = append(list, prefixCE+core.AttrContentType, e.ContentType)
	}
	if e.Priority > 0 {
		list = append(list, fieldPriority, strconv.Itoa(int(e.Priority)))
	}
	for name, value := range e.Headers {
		list = append(list, prefixHeader+name, value)
	}
	return append(list, fieldBody, string(e.Body))
}

// checkSendable returns an error if no retry can help e.
func checkSendable(e *waybill.Envelope, maxBytes int, now time.Time) error {
	switch {
	case len(e.Topic) > waybill.MaxNameBytes:
		return refused(waybill.ReasonRejected, fmt.Errorf("topic has %d bytes; at most %d are allowed", len(e.Topic), waybill.MaxNameBytes))
	case e.Size() > maxBytes:
		return refused(waybill.ReasonTooLarge, fmt.Errorf("topic %q: the message has %d bytes; Options.MaxMessageBytes is %d: raise that", e.Topic, e.Size(), maxBytes))
	case len(e.Headers) > maxFields:
		return refused(waybill.ReasonTooLarge, fmt.Errorf("topic %q: the message has %d headers; at most %d are possible", e.Topic, len(e.Headers), maxFields))
	case e.Expired(now):
		return refused(waybill.ReasonExpired, errExpired)
	}
	return nil
}
