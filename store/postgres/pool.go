package postgres

import (
	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/postgres/internal/conns"
)

// Pool describes the outbox's pool, for the warnings of engines. A *sql.DB that can have fewer than four connections
// can spare none for LISTEN and for presence: the relay then polls, and a killed one is missed when its lease is over.
func (o *Outbox) Pool() waybill.Pool { return poolOf(o.conns) }

// Pool describes the inbox's pool, for the warnings of engines.
func (i *Inbox) Pool() waybill.Pool { return poolOf(conns.Pool(i.pool)) }

// Pool describes the inbox's pool, for the warnings of engines.
func (i *SQLInbox) Pool() waybill.Pool { return poolOf(conns.SQL(i.db)) }

func poolOf(s conns.Source) waybill.Pool {
	id, most := s.Size()
	return waybill.Pool{ID: id, Max: most, Relay: s.Needs()}
}
