// Command waybill moves messages from outboxes to brokers, and looks after them. Run waybill help.
package main

import (
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
)

func main() {
	cli.App{Stores: adapters.Stores(), Transports: adapters.Transports()}.Main()
}
