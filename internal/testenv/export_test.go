package testenv

// Reserved tells whether the port is some process's.
func Reserved(port int) bool {
	l, ok := reserve(port)
	if ok {
		_ = l.Close()
	}
	return !ok
}

// Unavailable is unavailable, for tests.
var Unavailable = unavailable
