package core

import (
	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// MaxErrorBytes caps the text of a stored error.
const MaxErrorBytes = 1000

// maxReasonBytes caps a reason, which publishers and handlers can make up: it is stored, travels in headers, and labels
// metrics.
const maxReasonBytes = 255

// storable returns a reason as it can be stored: valid UTF-8 without NUL, capped.
func storable(r waybill.Reason) waybill.Reason {
	return waybill.Reason(check.Clip(string(r), maxReasonBytes))
}

// ErrorText returns err's text as stored and logged: valid UTF-8 without NUL, capped at MaxErrorBytes.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return check.Clip(err.Error(), MaxErrorBytes)
}
