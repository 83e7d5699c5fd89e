package waybill

import "time"

// The two ends of a [Retention]; forever and at_once in a configuration.
const (
	Forever time.Duration = -1 // records are never deleted; so does each negative value
	AtOnce  time.Duration = 1  // records are deleted by the settle, or by the next cleaning
)

// Retention says how long terminal records are kept: 0 means the default, besides [Forever] and [AtOnce].
type Retention struct {
	// Published is for published records; default [AtOnce]: the settle itself deletes them, at no extra cost.
	Published time.Duration
	// Abandoned is for abandoned records of every reason but those of Cancelled; default [Forever]. [AtOnce]
	// means at the next cleaning. When a record that blocks its key is deleted, the key goes on.
	Abandoned time.Duration
	// Cancelled is for cancelled and replaced records; default [AtOnce].
	Cancelled time.Duration
}
