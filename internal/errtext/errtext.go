// Package errtext adds the place to an error, in the same form in all packages, and gives an error another text.
//
// # Guarantees
//
// errors.Is and errors.As still reach the error.
//
// # Concurrency
//
// Within and WithText are safe for concurrent use.
//
// # Ownership
//
// The returned error keeps its cause.
//
// # Limits
//
// The text is as long as the place and the text of the cause.
package errtext

import "strings"

// Within adds the place to err, as fmt.Errorf("%s: %w", where, err) does, but drops a second "waybill" from the text:
// "waybill/relay: store: postgres: read: …".
func Within(where string, err error) error { return &withinError{where, err} }

type withinError struct {
	where string
	err   error
}

func (e *withinError) Error() string {
	text := e.err.Error()
	for _, own := range [...]string{"waybill/", "waybill: "} {
		text = strings.TrimPrefix(text, own)
	}
	return e.where + ": " + text
}

func (e *withinError) Unwrap() error { return e.err }
