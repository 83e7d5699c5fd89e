package mongo

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// attrs is the field attrs: CloudEvents attributes by name, headers, priority. A header is a pair, since its name may
// begin with a dollar.
type attrs struct {
	Attributes map[string]string `bson:"a"`
	Headers    [][2]string       `bson:"h,omitempty"`
	Priority   int32             `bson:"p,omitempty"`
}

// inFields are the attributes that have fields of their own, or follow from others.
var inFields = map[string]bool{core.AttrSpecVersion: true, core.AttrID: true, core.AttrKey: true, core.AttrHLC: true}

func encodeAttrs(e *waybill.Envelope) attrs {
	a := attrs{Attributes: map[string]string{}, Priority: int32(e.Priority)}
	for _, at := range core.AppendAttributes(make([]core.Attribute, 0, 16), e) {
		if !inFields[at.Name] {
			a.Attributes[at.Name] = at.Value
		}
	}
	if e.ContentType != "" {
		a.Attributes[core.AttrContentType] = e.ContentType
	}
	for name, value := range e.Headers {
		a.Headers = append(a.Headers, [2]string{name, value})
	}
	return a
}

// decodeAttrs sets the attributes that encodeAttrs wrote. It sets every readable one, also if it returns an error.
func decodeAttrs(e *waybill.Envelope, raw bson.RawValue) error {
	var a attrs
	if err := raw.Unmarshal(&a); err != nil {
		return errors.New("field attrs is not the document that Stage writes")
	}
	var first error
	for name, value := range a.Attributes {
		if known, err := core.SetAttribute(e, name, value); err != nil && first == nil {
			first = fmt.Errorf("field attrs: %w", err)
		} else if !known && first == nil {
			first = fmt.Errorf("field attrs: attribute %q is unknown", core.ErrorText(errors.New(name)))
		}
	}
	for _, h := range a.Headers {
		if e.Headers == nil {
			e.Headers = make(map[string]string, len(a.Headers))
		}
		e.Headers[h[0]] = h[1]
	}
	e.Priority = uint8(a.Priority)
	return first
}
