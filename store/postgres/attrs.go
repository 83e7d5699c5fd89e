package postgres

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill"
)

// attrs are the attributes that few messages have. They share one JSON column, so that the others need not carry them.
type attrs struct {
	Subject    string            `json:"subject,omitempty"`
	Tenant     string            `json:"tenant,omitempty"`
	Causation  string            `json:"causation,omitempty"`
	Run        string            `json:"run,omitempty"`
	Lineage    []string          `json:"lineage,omitempty"`
	TraceState string            `json:"tracestate,omitempty"`
	Priority   uint8             `json:"priority,omitempty"`
	Headers    map[string]string `json:"headers,omitempty"`
}

// encodeAttrs returns the JSON text of e's rarer attributes, "" if it has none.
func encodeAttrs(e *waybill.Envelope) (string, error) {
	if e.Subject == "" && e.Tenant == "" && e.CausationID == "" && e.RunID == "" && len(e.Lineage) == 0 && e.TraceState == "" &&
		e.Priority == 0 && len(e.Headers) == 0 {
		return "", nil
	}
	text, err := json.Marshal(attrs{e.Subject, e.Tenant, e.CausationID, e.RunID, e.Lineage, e.TraceState, e.Priority, e.Headers})
	if err != nil {
		return "", fmt.Errorf("waybill/postgres: stage: encode attributes: %w", err)
	}
	return string(text), nil
}

// decodeAttrs sets e's rarer attributes from text.
func decodeAttrs(e *waybill.Envelope, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	var a attrs
	if err := json.Unmarshal(text, &a); err != nil {
		field := ""
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
			field = fmt.Sprintf(" (field %q)", e.Field)
		}
		return undecodable("read a record", fmt.Errorf("column attrs holds %d bytes that are not the JSON that Stage writes%s: "+
			"find out who else writes to the table", len(text), field))
	}
	e.Subject, e.Tenant, e.CausationID, e.RunID = a.Subject, a.Tenant, a.Causation, a.Run
	e.Lineage, e.TraceState, e.Priority, e.Headers = a.Lineage, a.TraceState, a.Priority, a.Headers
	return nil
}

func undecodable(op string, err error) error {
	return &waybill.Error{Op: "waybill/postgres: " + op, Class: waybill.ClassPermanent, Reason: waybill.ReasonUndecodable, Err: err}
}
