// Package enum names the values of enumerations.
//
// # Guarantees
//
// A value without a name is shown with its type and number, never as an empty text.
//
// # Concurrency
//
// Name is safe for concurrent use.
//
// # Ownership
//
// Nothing is kept.
//
// # Limits
//
// Values are at most 255.
package enum

import "fmt"

// Name returns the name of v. The first of names is the name of the value first. A value without a name is "Kind(v)".
func Name[T ~uint8](kind string, v T, first uint8, names ...string) string {
	if n := uint8(v); n >= first && int(n-first) < len(names) {
		return names[n-first]
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}
