package sqlite

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill/admin/audit"
)

// No statement changes or deletes a line of the audit record, or takes the number of one, as long as the triggers are
// there.
// OP-21.
func TestAuditIsOnlyAddedTo(t *testing.T) {
	t.Parallel()
	db := fresh(t, "")
	s := newStore(t, db, Options{AutoMigrate: true})
	for _, phase := range []string{"begin", "end"} {
		if err := s.AppendAudit(t.Context(), audit.Entry{Act: "1", Phase: phase, Action: "redrive"}); err != nil {
			t.Fatal(err)
		}
	}
	const columns = "act, phase, who, via, origin, action, target, filter, ids, before, after, result"
	const values = "'1', 'end', '', '', '', 'nothing', '', '', '[]', '', '', ''"
	for _, attack := range []string{
		"UPDATE waybill_outbox_audit SET result = 'nothing'",
		"UPDATE waybill_outbox_audit SET number = number + 10",
		"DELETE FROM waybill_outbox_audit",
		"REPLACE INTO waybill_outbox_audit (number, " + columns + ") VALUES (1, " + values + ")",
		"INSERT OR REPLACE INTO waybill_outbox_audit (rowid, " + columns + ") VALUES (2, " + values + ")",
		"INSERT INTO waybill_outbox_audit (number, " + columns + ") VALUES (1, " + values + ") ON CONFLICT (number) DO UPDATE SET action = 'nothing'",
	} {
		if _, err := db.ExecContext(t.Context(), attack); err == nil || !strings.Contains(err.Error(), "only added to") {
			t.Errorf("%s: %v", attack, err)
		}
	}
	list, err := s.ListAudit(t.Context(), 0, 10)
	if err != nil || len(list) != 2 || list[0].Number != 2 || list[1].Number != 1 || list[0].Action != "redrive" || list[1].Action != "redrive" {
		t.Errorf("%+v, %v", list, err)
	}
}
