package waybill

import "time"

// Retention says how long terminal records are kept. In each field 0 means the default, and a negative value means for
// ever. A nanosecond, the least positive duration, means at once.
type Retention struct {
	// Published is for published records; default at once: the settle itself deletes them, at no extra cost.
	// Negative = for ever.
	Published time.Duration
	// Abandoned is for abandoned records of every reason but those of Withdrawn; default for ever. 1 ns = at once,
	// which means at the next cleaning. When a record that blocks its key is deleted, the key goes on.
	Abandoned time.Duration
	// Withdrawn is for cancelled and replaced records; default at once, negative = for ever.
	Withdrawn time.Duration
}
