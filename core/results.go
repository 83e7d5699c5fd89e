package core

// Results holds one error a message, in input order; nil means success. It is the only place for a batch's errors: a
// call that failed as a whole fills every one.
type Results []error

// AllFailed returns n results that all are err.
func AllFailed(n int, err error) Results {
	r := make(Results, n)
	for i := range r {
		r[i] = err
	}
	return r
}

// FirstErr returns the first error, or nil if everything succeeded.
func (r Results) FirstErr() error {
	for _, err := range r {
		if err != nil {
			return err
		}
	}
	return nil
}

// Failed returns how many results are errors.
func (r Results) Failed() int {
	n := 0
	for _, err := range r {
		if err != nil {
			n++
		}
	}
	return n
}
