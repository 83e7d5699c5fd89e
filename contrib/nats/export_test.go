package nats

// Exported for the tests.
var (
	Encode   = encode
	Decode   = decode
	Disjoint = disjoint
	Fits     = fits
	Patterns = patterns
	Classify = classify
)
