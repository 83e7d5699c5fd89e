package waybillmysql_test

// A record that a transaction keeps locked is due and not sent. An operator needs the transaction's name to end it.

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
)

// OP-19: the answer names the process, the user and the age of a transaction that keeps a record locked, and says "one
// of" if it can be one of several. A role without PROCESS is told of the lock alone.
func TestLockersAreNamed(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	restricted := login(t, s, "l", waybillmysql.ServiceGrants)
	messages := []waybill.Message{waybill.RawMessage("a", "", nil, waybill.ID("locked")), waybill.RawMessage("b", "", nil, waybill.ID("other"))}
	if err := stage(t.Context(), s, messages); err != nil {
		t.Fatal(err)
	}
	why := func(as *waybillmysql.Store) admin.Waiting {
		t.Helper()
		st, err := s.Inspect(t.Context(), waybill.DefaultRoute, "locked")
		if err != nil {
			t.Fatal(err)
		}
		w, err := admin.WhyWaits(t.Context(), as, &st, false)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	if w := why(s); w.Cause != admin.WaitNoRelay {
		t.Errorf("without a lock: %s", w.String())
	}
	lock := func(id string) (process int64, end func()) {
		t.Helper()
		tx, err := s.DB().BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var seq int64
		if err := tx.QueryRow(`SELECT seq, CONNECTION_ID() FROM waybill_outbox WHERE id = ? FOR UPDATE`, id).Scan(&seq, &process); err != nil {
			t.Fatal(err)
		}
		return process, func() { _ = tx.Rollback() }
	}
	process, end := lock("locked")
	named := func(w admin.Waiting, process int64) bool { // other tests have transactions on this server, too
		text := fmt.Sprintf(`^(one of )?process %d, of user .+, open for \d+s$`, process)
		return slices.ContainsFunc(w.LockedBy, regexp.MustCompile(text).MatchString)
	}
	if w := why(s); w.Cause != admin.WaitLock || !named(w, process) {
		t.Errorf("%s: %s", w.Cause, w.String())
	}
	other, endOther := lock("other")
	if w := why(s); w.Cause != admin.WaitLock || !named(w, process) || !named(w, other) || !strings.HasPrefix(w.LockedBy[0], "one of process ") {
		t.Errorf("two transactions: %s: %q", w.Cause, w.LockedBy)
	}
	if w := why(restricted); w.Cause != admin.WaitLock || len(w.LockedBy) > 0 {
		t.Errorf("without PROCESS: %s: %s", w.Cause, w.String())
	}
	endOther()
	end()
	if w := why(s); w.Cause != admin.WaitNoRelay {
		t.Errorf("after the transaction: %s", w.String())
	}
}
