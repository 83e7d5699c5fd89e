// Package check holds the checks of values that all packages share, with their texts.
//
// # Guarantees
//
// Every check returns the problem and its cure, or "". The text quotes at most 80 bytes of the value.
//
// # Concurrency
//
// All functions are safe for concurrent use.
//
// # Ownership
//
// Nothing is kept.
//
// # Limits
//
// Names have at most [MaxNameBytes].
package check

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TenantEnd stands between a tenant and its dedupe key in a store. No name holds it.
const TenantEnd = "\x1f"

// MaxNameBytes bounds ids, topics, types, sources, keys, routes and the like: the length of an AMQP short string.
const MaxNameBytes = 255

// Nil reports whether v is nil, or an interface that holds a nil pointer: a constructor returned it with an error that
// its caller did not check. Constructors refuse both.
func Nil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// Topic returns the problem of a topic name, or "".
func Topic(name string) string {
	switch {
	case name == "":
		return "is empty; name the routing key, such as \"orders.placed\""
	case strings.ContainsAny(name, "*#"):
		return fmt.Sprintf("%q holds a wildcard; only bindings may", Clip(name, 80))
	case strings.ContainsFunc(name, unicode.IsSpace):
		return fmt.Sprintf("%q holds a space; write words with dots between them, such as \"orders.placed\"", Clip(name, 80))
	}
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") {
		return fmt.Sprintf("%q holds an empty word; write words with single dots between them, such as \"orders.placed\"", Clip(name, 80))
	}
	return Name(name)
}

// Source returns the problem of a CloudEvents source, or "". It is a URI reference by RFC 3986. Empty is fine.
func Source(s string) string {
	const allowed = "-._~:/?#[]@!$&'()*+,;=%"
	for _, r := range s {
		if r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(allowed, r) {
			return fmt.Sprintf("%q is not a URI reference, as CloudEvents asks: %q must not stand in it; write it such as \"/orders\"",
				Clip(s, 80), string(r))
		}
	}
	return Name(s)
}

// Name returns the problem of a name that must be storable and sendable everywhere, or "". Empty is fine.
func Name(s string) string {
	if len(s) > MaxNameBytes {
		return fmt.Sprintf("has %d bytes; at most %d are allowed: shorten it", len(s), MaxNameBytes)
	}
	return Text(s)
}

// Text returns the problem of a text that must be storable and sendable everywhere, or "". Empty is fine.
func Text(s string) string {
	if !utf8.ValidString(s) {
		return fmt.Sprintf("%q is not valid UTF-8: encode it, as base64 say", Clip(s, 80))
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return fmt.Sprintf("%q holds the control character 0x%02x: remove it", Clip(s, 80), s[i])
		}
	}
	return ""
}

// Clip cuts s to at most n bytes at a character boundary and makes it storable.
func Clip(s string, n int) string {
	clean := make([]rune, 0, min(len(s), n))
	size := 0
	for _, r := range s {
		if r == 0 {
			r = utf8.RuneError
		}
		if size += utf8.RuneLen(r); size > n {
			break
		}
		clean = append(clean, r)
	}
	return string(clean)
}
