// Command waybill is the waybill command with Kafka beside Postgres and SQLite, and without other brokers.
package main

import (
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters/sqlstores"
	"github.com/waybill-go/waybill/contrib/kafka/adapter"
)

func main() {
	cli.App{Stores: sqlstores.Stores(), Transports: []cli.TransportKind{adapter.Transport()}}.Main()
}
