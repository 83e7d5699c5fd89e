package sqlite

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// storedAttrs is the JSON of column attrs: CloudEvents attributes by name, headers, priority.
type storedAttrs struct {
	Attributes map[string]string `json:"a,omitempty"`
	Headers    map[string]string `json:"h,omitempty"`
	Priority   uint8             `json:"p,omitempty"`
}

// inColumns are the attributes that have columns of their own, or follow from others.
var inColumns = map[string]bool{core.AttrSpecVersion: true, core.AttrID: true, core.AttrKey: true, core.AttrHLC: true}

func encodeAttrs(e *waybill.Envelope) (string, error) {
	list := core.AppendAttributes(make([]core.Attribute, 0, 16), e)
	a := storedAttrs{Attributes: make(map[string]string, len(list)), Headers: e.Headers, Priority: e.Priority}
	for _, at := range list {
		if !inColumns[at.Name] {
			a.Attributes[at.Name] = at.Value
		}
	}
	if e.ContentType != "" {
		a.Attributes[core.AttrContentType] = e.ContentType
	}
	b, err := json.Marshal(&a)
	return string(b), err
}

// decodeAttrs sets the attributes that encodeAttrs wrote. It sets every readable one, also if it returns an error.
func decodeAttrs(e *waybill.Envelope, text string) error {
	var a storedAttrs
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return fmt.Errorf("column attrs holds %d bytes that are not the JSON that Stage writes", len(text))
	}
	var first error
	for name, value := range a.Attributes {
		if known, err := core.SetAttribute(e, name, value); err != nil && first == nil {
			first = fmt.Errorf("column attrs: %w", err)
		} else if !known && first == nil {
			first = fmt.Errorf("column attrs: attribute %q is unknown", core.ErrorText(errors.New(name)))
		}
	}
	e.Headers, e.Priority = a.Headers, a.Priority
	return first
}
