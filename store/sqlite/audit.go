package sqlite

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

const (
	auditText = `INSERT INTO waybill_outbox_audit (at, act, phase, who, via, origin, action, target, filter, ids, before, after, result)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)`
	auditLogText = `SELECT number, at, act, phase, who, via, origin, action, target, filter, ids, before, after, result
		FROM waybill_outbox_audit WHERE number < ?1 ORDER BY number DESC LIMIT ?2`
)

// AppendAudit adds a line to the audit record; see [audit.Recorder]. Triggers refuse to change and to delete lines.
// They bind programs that make a mistake: SQLite has no users, and a program that may write to the file can drop them.
// Lines name no role.
func (s *Store) AppendAudit(ctx context.Context, e audit.Entry) error {
	e, err := e.Check()
	if err != nil {
		return err
	}
	ids, err := json.Marshal(e.IDs)
	if err != nil {
		return err
	}
	return s.write(ctx, "audit", func(w *work) (bool, error) {
		_, err := w.exec(ctx, auditText, w.now, e.Act, e.Phase, e.User, e.Via, e.From, e.Action, e.Target, e.Filter, string(ids), e.Before, e.After, e.Result)
		return true, err
	})
}

// ListAudit lists the audit record; see [audit.Recorder].
func (s *Store) ListAudit(ctx context.Context, before int64, limit int) (entries []audit.Entry, err error) {
	if before <= 0 {
		before = math.MaxInt64
	}
	err = s.read(ctx, "list the audit record", func(w *work) error {
		entries = nil
		return w.each(ctx, func(rows *sql.Rows) (bool, error) {
			var e audit.Entry
			var at int64
			var ids []byte
			err := rows.Scan(&e.Number, &at, &e.Act, &e.Phase, &e.User, &e.Via, &e.From, &e.Action, &e.Target, &e.Filter, &ids, &e.Before, &e.After, &e.Result)
			if err == nil {
				err = json.Unmarshal(ids, &e.IDs)
			}
			e.At = time.UnixMicro(at)
			entries = append(entries, e)
			return true, err
		}, auditLogText, before, min(max(limit, 1), admin.MaxPageLimit))
	})
	return entries, err
}
