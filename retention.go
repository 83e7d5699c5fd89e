package waybill

import "time"

// Retention says how long terminal records are kept. Per field: 0 = the default, negative = for ever; the least
// positive duration means at once.
type Retention struct {
	// Published: default at once: deleted by the settle itself, at no extra cost.
	Published time.Duration
	// Abandoned: default for ever. It holds for every reason but those of Withdrawn. At once means at the next
	// cleaning. When one that blocks its key is deleted, the key goes on.
	Abandoned time.Duration
	// Withdrawn is for cancelled and replaced records; default at once.
	Withdrawn time.Duration
}
