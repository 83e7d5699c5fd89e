package consumer

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// structuredType is the media type of a CloudEvent in structured mode: the body is a JSON object with the attributes
// and the data. See the JSON Event Format for CloudEvents 1.0.
const structuredType = "application/cloudevents+json"

// unwrap turns a delivery in structured mode into one in binary mode: attributes become fields, and the data the body.
// A delivery that cannot be read gets an error. Others stay as they are.
func unwrap(d *waybill.Delivery) {
	ct := d.Envelope.ContentType
	if d.Err != nil || len(ct) < len(structuredType) || !strings.EqualFold(ct[:len(structuredType)], structuredType) {
		return
	}
	if media, _, err := mime.ParseMediaType(ct); err != nil || media != structuredType {
		return
	}
	e := d.Envelope
	e.Headers = maps.Clone(e.Headers)
	if err := fromStructured(&e); err != nil {
		reason := cmp.Or(waybill.ReasonOf(err), waybill.ReasonUndecodable)
		d.Err = &waybill.Error{Op: "waybill/consumer: CloudEvent in structured mode", Class: waybill.ClassPermanent, Reason: reason, Err: err}
		return
	}
	d.Envelope = e
}

// fromStructured reads the body of e. The body's fields win over those that stood beside it, but for the id.
func fromStructured(e *waybill.Envelope) error {
	var event map[string]json.RawMessage
	if err := json.Unmarshal(e.Body, &event); err != nil {
		return errors.New("the body is not a JSON object") // the parser's text would quote it
	}
	carried, topic := e.ID, e.Topic
	data, encoded := event["data"], event["data_base64"]
	delete(event, "data")
	delete(event, "data_base64")
	e.ID, e.ContentType = "", ""
	for name, raw := range event {
		value, ok := attributeText(raw)
		if !ok {
			return fmt.Errorf("attribute %.40q is neither a text, a number nor a boolean", name)
		}
		if known, err := core.SetAttribute(e, name, value); known && err == nil {
			continue
		}
		if e.Headers == nil {
			e.Headers = map[string]string{}
		}
		e.Headers["ce-"+name] = value
	}
	if topic != "" {
		e.Topic = topic // the broker's routing key
	}
	switch {
	case e.ID == "" || e.Source == "" || e.Type == "":
		return errors.New("id, source or type is missing")
	case carried != "" && carried != e.ID:
		return &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonIDConflict, Err: fmt.Errorf("the broker's id is %.80q, the event's %.80q", carried, e.ID)}
	case len(encoded) > 0 && len(data) > 0:
		return errors.New("it has both data and data_base64")
	}
	return setBody(e, data, encoded)
}

// setBody makes the body of the event's data. Data that is declared as another type than JSON, and is a JSON text, is
// that text.
func setBody(e *waybill.Envelope, data, encoded json.RawMessage) error {
	if len(encoded) > 0 {
		var text string
		if err := json.Unmarshal(encoded, &text); err != nil {
			return errors.New("data_base64 is not a text")
		}
		body, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return errors.New("data_base64 is not base64")
		}
		e.Body = body
		return nil
	}
	if e.ContentType == "" {
		e.ContentType = "application/json"
	}
	media, _, _ := mime.ParseMediaType(e.ContentType)
	var text string
	if isJSON := media == "application/json" || strings.HasSuffix(media, "+json"); !isJSON && json.Unmarshal(data, &text) == nil {
		e.Body = []byte(text)
		return nil
	}
	e.Body = bytes.Clone(data)
	return nil
}

// attributeText returns the text of a context attribute, which is a JSON text, number or boolean.
func attributeText(raw json.RawMessage) (string, bool) {
	var v any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		return "", false
	}
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	case nil:
		return "", true
	}
	return "", false
}
