package core

import (
	"fmt"

	"github.com/waybill-go/waybill"
)

// IDTaken is the error of a Stage whose message has the id of a record of its route with another source. A duplicate
// would lose the message without a word. Op is the operation, such as "waybill/postgres: stage".
func IDTaken(op, route, id string) error {
	return &waybill.Error{
		Op: op, Class: waybill.ClassPermanent, Reason: waybill.ReasonIDConflict,
		Err: fmt.Errorf("the id %.80q on route %q is that of a message of another source: put the name of the service into ids that it chooses, "+
			"or give each service a route of its own", id, route),
	}
}
