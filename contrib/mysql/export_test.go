package waybillmysql

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill/admin"
)

// RequeueIn is Redrive of one record, by force, in a transaction of the caller.
func (s *Store) RequeueIn(ctx context.Context, tx *sql.Tx, route, id string) error {
	w := &work{s: s, q: tx}
	rows, err := w.rows(ctx, attrsSQL+byIDSQL, id, route)
	if err == nil && len(rows) == 0 {
		err = admin.NoRecord("test", route, id)
	}
	if err != nil {
		return err
	}
	return w.requeue(ctx, rows[0].decode(), nil)
}

// Own returns the store's own pool.
func (s *Store) Own() *sql.DB { return s.own }

// Classify and Recent are tested as tables.
var (
	Classify = classify
	Recent   = recent
)
