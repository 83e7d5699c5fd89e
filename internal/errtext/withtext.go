package errtext

import "cmp"

// WithText returns err with the text that f makes of it; err itself without an f. If f panics or returns nothing, the
// text has nothing of err.
func WithText(err error, f func(error) string) error {
	if err == nil || f == nil {
		return err
	}
	return &withText{text(err, f), err}
}

func text(err error, f func(error) string) (s string) {
	defer func() {
		if recover() != nil {
			s = "hidden: the function for texts of errors panicked"
		}
	}()
	return cmp.Or(f(err), "hidden")
}

type withText struct {
	text string
	err  error
}

func (e *withText) Error() string { return e.text }
func (e *withText) Unwrap() error { return e.err }
