package waybillmysql_test

import (
	"testing"

	"github.com/waybill-go/waybill/admin/audit"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
)

// A login that does everything but migrate adds lines to the audit record, and can neither change nor delete one, nor
// choose its time, its number or its role. One that only stages has no access to it.
// OP-21.
func TestAuditIsOnlyAddedTo(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	service, stager := login(t, s, "s", waybillmysql.ServiceGrants), login(t, s, "p", waybillmysql.StagerGrants)
	line := audit.Entry{Act: "1", Phase: "begin", Action: "redrive"}
	if err := service.AppendAudit(t.Context(), line); err != nil {
		t.Fatal(err)
	}
	if err := stager.AppendAudit(t.Context(), line); err == nil {
		t.Error("a login that only stages writes to the record")
	}
	list, err := service.ListAudit(t.Context(), 0, 10)
	if err != nil || len(list) != 1 || list[0].Role == "" {
		t.Fatalf("%+v, %v", list, err)
	}
	const columns = "act, phase, who, via, origin, action, target, filter, ids, body_before, body_after, result"
	const values = "'1', 'end', '', '', '', 'nothing', '', '', '[]', '', '', ''"
	for _, attack := range []string{
		"UPDATE waybill_outbox_audit SET result = 'nothing'", "DELETE FROM waybill_outbox_audit", "TRUNCATE waybill_outbox_audit",
		"INSERT INTO waybill_outbox_audit (at, " + columns + ") VALUES (1, " + values + ")",
		"INSERT INTO waybill_outbox_audit (role, " + columns + ") VALUES ('eve', " + values + ")",
		"INSERT INTO waybill_outbox_audit (number, " + columns + ") VALUES (9, " + values + ")",
		"REPLACE INTO waybill_outbox_audit (" + columns + ") VALUES (" + values + ")",
		"INSERT INTO waybill_outbox_audit (" + columns + ") VALUES (" + values + ") ON DUPLICATE KEY UPDATE action = 'nothing'",
	} {
		if _, err := service.DB().Exec(attack); number(err) != tableDenied && number(err) != columnDenied {
			t.Errorf("%s: %v", attack, err)
		}
	}
}
