// Package costs holds tests only. They count what 1,000 messages cost in statements, round trips, bytes of Postgres'
// log, AMQP frames and allocations, and compare the counts with the table testdata/costs.md. A count that grows by more
// than 5 % fails. One that shrinks by more than 5 % is only told of: the table can be improved.
//
//	go test ./internal/tests/costs -update
//
// writes what was counted into the table. It leaves allocations and log bytes as they are if they differ by at most
// 1 %, so that two runs write the same table.
//
// # What is counted
//
// Counts do not depend on how fast the machine is. Everything runs with one connection or one handler at a time, with
// the collector off, on private servers: Postgres without full-page images and without autovacuum, since both depend on
// when a checkpoint or a worker comes. Statements are those that the server says it has run, BEGIN and
// COMMIT among them. Round trips are writes to the connection.
//
// # Limits
//
// The tests are not built with the race detector, which allocates itself: make test runs them without. Allocations
// depend on the version of Go, and log bytes a little on that of Postgres: the table names both.
package costs
