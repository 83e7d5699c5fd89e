package core

import "reflect"

// IsNil reports whether v is nil, or an interface that holds a nil pointer: what a constructor returned whose error was
// not looked at. Constructors refuse both.
func IsNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// As returns the capability T of v: v itself if it has it, else that of what v decorates, following Unwrap() any. A
// decorator that must not pass a capability on implements it.
func As[T any](v any) (T, bool) {
	for v != nil {
		if t, ok := v.(T); ok {
			return t, true
		}
		u, ok := v.(interface{ Unwrap() any })
		if !ok {
			break
		}
		v = u.Unwrap()
	}
	var zero T
	return zero, false
}
