// Package adapters has the kinds of stores and transports of this module, for the waybill command and for programs like
// it.
//
// # Guarantees
//
//   - Opening waits for nothing: a server that is down is an outage later, as any other.
//   - A secret that names a file is read again for each new connection, so that a rotated password works. MongoDB's
//     driver is the exception: it keeps its first user and password.
//
// # Concurrency
//
// The functions are safe for concurrent use.
//
// # Ownership
//
// The slices belong to the caller.
//
// # Limits
//
// The kinds are postgres, sqlite and mongo, and rabbitmq, redis and sqs. Each takes its package's Options as keys, and
// the fields of the settings types here.
package adapters

import (
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters/sqlstores"
)

// Stores returns the kinds of stores.
func Stores() []cli.StoreKind {
	return append(sqlstores.Stores(), cli.NewStoreKind("mongo", openMongo))
}

// Transports returns the kinds of transports.
func Transports() []cli.TransportKind {
	return []cli.TransportKind{
		cli.NewTransportKind("rabbitmq", openRabbitMQ), cli.NewTransportKind("redis", openRedis), cli.NewTransportKind("sqs", openSQS),
	}
}
