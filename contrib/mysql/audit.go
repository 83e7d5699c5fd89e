package waybillmysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"math"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
)

var _ audit.Recorder = (*Store)(nil)

const auditColumns = `act, phase, who, via, origin, action, target, filter, ids, body_before, body_after, result`

// AppendAudit adds a line to the audit record; see [audit.Recorder]. A login with [ServiceGrants] can add lines, and
// can neither change nor delete one. The owner of the table can.
func (s *Store) AppendAudit(ctx context.Context, e audit.Entry) error {
	e, err := e.Check()
	if err != nil {
		return err
	}
	ids, err := json.Marshal(e.IDs)
	if err != nil {
		return err
	}
	return s.write(ctx, "audit", func(w *work) error {
		_, err := w.exec(ctx, `INSERT INTO waybill_outbox_audit (`+auditColumns+`) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)`,
			e.Act, e.Phase, e.User, e.Via, e.From, e.Action, e.Target, e.Filter, string(ids), e.Before, e.After, e.Result)
		return err
	})
}

// ListAudit lists the audit record; see [audit.Recorder].
func (s *Store) ListAudit(ctx context.Context, before int64, limit int) (entries []audit.Entry, err error) {
	if before <= 0 {
		before = math.MaxInt64
	}
	err = s.read(ctx, "list the audit record", func(w *work) (err error) {
		entries, err = collect(ctx, w.q, func(rows *sql.Rows) (e audit.Entry, err error) {
			var at int64
			var ids []byte
			err = rows.Scan(&e.Number, &at, &e.Role, &e.Act, &e.Phase, &e.User, &e.Via, &e.From, &e.Action, &e.Target, &e.Filter, &ids, &e.Before, &e.After, &e.Result)
			if err == nil {
				err = json.Unmarshal(ids, &e.IDs)
			}
			e.At = time.UnixMicro(at)
			return e, err
		}, `SELECT number, at, role, `+auditColumns+` FROM waybill_outbox_audit WHERE number < ? ORDER BY number DESC LIMIT ?`,
			before, min(max(limit, 1), admin.MaxPageLimit))
		return err
	})
	return entries, err
}
