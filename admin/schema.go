package admin

import "context"

// Difference is one thing in a live schema that is not as it must be.
type Difference struct {
	// Object is the table, column, index or constraint, such as "waybill_outbox.key".
	Object string
	// Want and Have describe it. Have is "missing" if it is not there.
	Want, Have string
}

// DriftChecker compares the live schema with the adapter's needs. It ignores columns and indexes that the owner added.
type DriftChecker interface {
	// Drift returns every difference, or nil.
	Drift(ctx context.Context) ([]Difference, error)
}

// Loss is a table with messages or marks that a way back to an older schema drops.
type Loss struct {
	Table string
	// Holds is what one of its rows is: a message, or a mark of the inbox.
	Holds string
	// Rows is their number. More says that counting stopped there.
	Rows int
	More bool
}

// LossBound is how many rows of a [Loss] are counted.
const LossBound = 10_000

// Migrator creates and upgrades the schema of an adapter. Without it the documentation says how to create the schema.
type Migrator interface {
	// Migrate brings the schema to the newest version, under a lock, idempotently.
	Migrate(ctx context.Context) error
}
