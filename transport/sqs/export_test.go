package sqs

import (
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
)

// Decode is decode for the tests.
func Decode(m *types.Message, queue string) (e waybill.Envelope, reason, cause string) {
	d := decode(m, queue)
	return d.env, d.rest.Reason, d.rest.Error
}

// Encode is encode for the tests.
func Encode(e *waybill.Envelope) (body string, attributes map[string]types.MessageAttributeValue, err error) {
	w, err := encode(e)
	return w.body, w.attributes, err
}

// CallError and EntryError are the tables of errors.
var (
	CallError  = callError
	EntryError = entryError
)

// OpPublish and OpSettle are operations.
const (
	OpPublish = opPublish
	OpSettle  = opSettle
)

// SetDue changes when d, which came early, is due.
func SetDue(d *waybill.Delivery, due time.Time) {
	if h, ok := d.Handle.(*handle); ok {
		h.dec.rest.Due = due.UnixMilli()
	}
}
