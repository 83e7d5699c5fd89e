package sqs

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// The attributes of a message. SQS allows ten, so everything without one of its own is in attrRest.
const (
	prefixCE        = "ce_"
	attrContentType = "content-type"
	attrRest        = "waybill"
)

// own are the CloudEvents attributes that have an attribute of SQS.
var own = map[string]string{
	core.AttrSpecVersion: prefixCE + core.AttrSpecVersion, core.AttrID: prefixCE + core.AttrID, core.AttrSource: prefixCE + core.AttrSource,
	core.AttrType: prefixCE + core.AttrType, core.AttrTopic: prefixCE + core.AttrTopic, core.AttrTraceParent: core.AttrTraceParent,
}

// The values of rest.Encoding: the form of the body in SQS, which is text and never empty.
const (
	encodingBase64 = "base64"
	encodingEmpty  = "empty"
)

// rest is attrRest, as JSON.
type rest struct {
	Attributes   map[string]string `json:"attributes,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	Encoding     string            `json:"waybill-encoding,omitempty"`
	Priority     uint8             `json:"waybill-priority,omitempty"`
	Attempt      int               `json:"waybill-attempt,omitempty"`
	Redeliveries int               `json:"waybill-redeliveries,omitempty"`
	Due          int64             `json:"waybill-due,omitempty"` // milliseconds since 1970
	Error        string            `json:"waybill-error,omitempty"`
	Reason       string            `json:"waybill-reason,omitempty"`
	Queue        string            `json:"waybill-queue,omitempty"`
	ParkedAt     string            `json:"waybill-parked-at,omitempty"`
	Unread       string            `json:"waybill-unread,omitempty"` // what came, and could not be read
}

func (r *rest) setAttribute(name, v string) {
	if r.Attributes == nil {
		r.Attributes = map[string]string{}
	}
	r.Attributes[name] = v
}

// text returns r as JSON of characters that SQS takes, or "" if there is nothing in it.
func (r *rest) text() (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return "", fmt.Errorf("the attribute %s: %w", attrRest, err)
	}
	s := strings.TrimSuffix(b.String(), "\n")
	if s == "{}" {
		return "", nil
	}
	return strings.NewReplacer("\ufffe", `\ufffe`, "\uffff", `\uffff`).Replace(s), nil
}

// wire is a message as SQS has it.
type wire struct {
	body       string
	attributes map[string]types.MessageAttributeValue
}

// size returns the size of w as SQS counts it.
func (w *wire) size() int {
	n := len(w.body)
	for name, a := range w.attributes {
		n += len(name) + len(value(a.DataType)) + len(value(a.StringValue)) + len(a.BinaryValue)
	}
	return n
}

// stringType is the type of all attributes; it never changes.
var stringType = "String"

func (w *wire) set(name, v string) {
	w.attributes[name] = types.MessageAttributeValue{DataType: &stringType, StringValue: &v}
}

// encode returns e for the wire.
func encode(e *waybill.Envelope) (wire, error) {
	w := wire{attributes: make(map[string]types.MessageAttributeValue, maxAttributes)}
	r := rest{Headers: e.Headers, Priority: e.Priority}
	var buf [24]core.Attribute
	put := func(name, sqsName, v string) {
		if sqsName == "" || !sendable(v) {
			r.setAttribute(name, v)
			return
		}
		w.set(sqsName, v)
	}
	for _, a := range core.AppendAttributes(buf[:0], e) {
		put(a.Name, own[a.Name], a.Value)
	}
	put(core.AttrTopic, own[core.AttrTopic], e.Topic)
	if e.ContentType != "" {
		put(core.AttrContentType, attrContentType, e.ContentType)
	}
	w.body, r.Encoding = encodeBody(e.Body)
	s, err := r.text()
	if err != nil {
		return w, err
	}
	if s != "" {
		w.set(attrRest, s)
	}
	return w, nil
}

func encodeBody(b []byte) (body, encoding string) {
	switch {
	case len(b) == 0:
		return "-", encodingEmpty
	case sendable(string(b)):
		return string(b), ""
	}
	return base64.StdEncoding.EncodeToString(b), encodingBase64
}

// sendable reports whether SQS takes s as a body or as an attribute's value: not empty, Unicode text, no control
// characters.
func sendable(s string) bool {
	if s == "" || !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == '\ufffe' || c == '\uffff' {
			return false
		}
	}
	return true
}

var errUnread = errors.New("the attribute " + attrRest + " is not the JSON of docs/wire-format.md: correct the producer")

var errWrapped = errors.New("the message is wrapped in SNS's own JSON, with an id that changes: switch on raw message delivery of the subscription to SNS")

const unreadSNS = "SNS"

// wrapped reports whether body is the JSON of SNS without raw delivery.
func wrapped(body []byte) bool {
	if !bytes.Contains(body, []byte(`"TopicArn"`)) {
		return false
	}
	var n struct{ Type, TopicArn, MessageID string } // names in any case
	return json.Unmarshal(body, &n) == nil && n.Type == "Notification" && n.TopicArn != "" && n.MessageID != ""
}

// decoded is what a message of SQS says.
type decoded struct {
	env  waybill.Envelope
	rest rest
	err  error // not nil if it cannot be read
}

// decode reads m, which came from queue. A foreign message lacks most of it: its id is then SQS's, and its topic the
// type, or else the queue's name.
func decode(m *types.Message, queue string) (d decoded) {
	e := &d.env
	if a, ok := m.MessageAttributes[attrRest]; ok {
		if err := json.Unmarshal([]byte(attributeText(&a)), &d.rest); err != nil {
			d.rest = rest{Unread: attributeText(&a)}
		}
	}
	if d.rest.Unread != "" {
		d.err = permanent(opReceive, waybill.ReasonUndecodable, errUnread)
	}
	header := func(name, v string) {
		if e.Headers == nil {
			e.Headers = make(map[string]string, len(d.rest.Headers)+4)
		}
		e.Headers[name] = v
	}
	for name, v := range d.rest.Headers {
		header(name, v)
	}
	for name, v := range d.rest.Attributes {
		if known, err := core.SetAttribute(e, name, v); !known || err != nil {
			header(prefixCE+name, v)
		}
	}
	for name, a := range m.MessageAttributes {
		if name != attrRest {
			readAttribute(e, name, attributeText(&a), header)
		}
	}
	e.Priority = min(d.rest.Priority, 9)
	if err := d.body(value(m.Body)); err != nil && d.err == nil {
		d.err = permanent(opReceive, waybill.ReasonUndecodable, err)
	}
	if (len(m.MessageAttributes) == 0 || d.rest.Unread == unreadSNS) && wrapped(e.Body) {
		d.rest.Unread = unreadSNS // in copies, too
		d.err = permanent(opReceive, waybill.ReasonUndecodable, errWrapped)
	}
	if e.ID == "" {
		e.ID = value(m.MessageId)
	}
	if e.Topic == "" {
		e.Topic = e.Type
	}
	if e.Topic == "" {
		e.Topic = queue
	}
	return d
}

func readAttribute(e *waybill.Envelope, name, v string, header func(name, v string)) {
	attr, isCE := strings.CutPrefix(name, prefixCE)
	switch {
	case name == attrContentType:
		e.ContentType = v
		return
	case isCE || name == core.AttrTraceParent || name == core.AttrTraceState:
		if known, err := core.SetAttribute(e, attr, v); known && err == nil {
			return
		}
	}
	header(name, v) // also what has no field, or cannot be read
}

func attributeText(a *types.MessageAttributeValue) string {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case utf8.Valid(a.BinaryValue):
		return string(a.BinaryValue)
	}
	return base64.StdEncoding.EncodeToString(a.BinaryValue)
}

func (d *decoded) body(s string) (err error) {
	switch d.rest.Encoding {
	case "":
		d.env.Body = []byte(s)
	case encodingEmpty:
	case encodingBase64:
		d.env.Body, err = base64.StdEncoding.DecodeString(s)
		if err != nil {
			d.env.Body, err = []byte(s), fmt.Errorf("the body is not the base64 that waybill-encoding says: correct the producer (%w)", err)
		}
	default:
		d.env.Body, err = []byte(s), fmt.Errorf("waybill-encoding %q is unknown: use base64, or none", clip(d.rest.Encoding))
	}
	return err
}

func clip(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
