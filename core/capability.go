package core

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
