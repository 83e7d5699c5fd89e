// Package orms shows how to stage messages in the transactions of GORM, sqlx, ent and bun. They all run on
// database/sql, so the outbox is made by postgres.NewSQLStager, and all that is needed is the *sql.Tx below the
// library's transaction. Each file holds that one step and an order that is placed with it: the row and the message are
// committed together or not at all. The tests run them on a real PostgreSQL.
//
// It is a module of its own, so that a user of Waybill does not download four ORMs.
package orms

import (
	"database/sql"

	"github.com/waybill-go/waybill"
)

// Order is a business row, and the payload of OrderPlaced.
type Order struct {
	ID    string `bun:",pk" json:"id"`
	Total int64  `json:"total"`
}

// OrderPlaced says that an order was written.
var OrderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[Order]())

// Outbox is what postgres.NewSQLStager returns.
type Outbox = waybill.Stager[*sql.Tx]
