package admin

import "context"

// Difference is one thing in a live schema that is not as it must be.
type Difference struct {
	// Object is the table, column, index or constraint, such as "waybill_outbox.key".
	Object string
	// Want and Have describe it; Have is "missing" if it is not there.
	Want, Have string
}

// DriftChecker compares the live schema with what the adapter needs. An owner's own columns and indexes are fine.
type DriftChecker interface {
	// Drift returns every difference, or nil.
	Drift(ctx context.Context) ([]Difference, error)
}

// Migrator creates and upgrades what an adapter needs. Without it the documentation says what to create.
type Migrator interface {
	// Migrate brings the schema to the newest version, under a lock, idempotently.
	Migrate(ctx context.Context) error
}
