// Package sqlstores has the kinds postgres and sqlite of stores, for commands without the clients of other databases.
// Package adapters has all kinds.
//
// # Guarantees
//
// Those of package adapters.
//
// # Concurrency
//
// Stores is safe for concurrent use.
//
// # Ownership
//
// The slice belongs to the caller.
//
// # Limits
//
// Each kind takes its package's Options as keys, and the fields of its settings type here.
package sqlstores

import "github.com/waybill-go/waybill/cli"

// Stores returns the kinds of stores.
func Stores() []cli.StoreKind {
	return []cli.StoreKind{cli.NewStoreKind("postgres", openPostgres), cli.NewStoreKind("sqlite", openSQLite)}
}
