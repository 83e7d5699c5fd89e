package waybill

// Pool describes the connection pool that a store works with, so that engines can say at their start that it is too
// small. One connection is enough for everything: a call that finds no free connection waits.
type Pool struct {
	// ID is the same for the same pool, and comparable; nil = there is no pool.
	ID any
	// Max is how many connections it can have; 0 = any number.
	Max int
	// Relay is how many of them a relay, or the receivers of a table queue, use at a time.
	Relay int
}
