// Package errtext says where an error happened, in the words of all packages.
//
// # Guarantees
//
// errors.Is and errors.As still reach the error.
//
// # Concurrency
//
// Within is safe for concurrent use.
//
// # Ownership
//
// The returned error keeps the one that was passed.
//
// # Limits
//
// The text is as long as that of the error, and the place.
package errtext

import "strings"

// Within says where err happened, as fmt.Errorf("%s: %w", where, err) does, but its text says only once that it is
// Waybill's: "waybill/relay: store: postgres: read: …".
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
