package core

import "github.com/waybill-go/waybill/internal/check"

// MaxErrorBytes caps the text of a stored error.
const MaxErrorBytes = 1000

// ErrorText returns err's text as stored and logged: valid UTF-8 without NUL, capped at MaxErrorBytes.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return check.Clip(err.Error(), MaxErrorBytes)
}
