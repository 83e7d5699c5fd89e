package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// OR-05: a list of blocked keys goes on behind keys that are looked at and not blocked, however many they are.
func TestBlockedKeysBehindOthers(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	self := session(t, o, waybill.DefaultRoute)
	const retrying, blocked = 1500, 300
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, id, key, state, retry, due_at, attempts, hold)
		SELECT 't.x', '', i::text, 'k' || lpad(i::text, 6, '0'), $1, true, now(), 1, CASE WHEN i > $2 THEN 0 ELSE $3::bigint END
		FROM generate_series(1, $4) i`, int(core.StateFailed), retrying-blocked, int64(self), retrying)
	var got []string
	req := admin.BlockedKeysRequest{Route: waybill.DefaultRoute, Limit: 200}
	for more := true; more; {
		var keys []admin.BlockedKey
		var err error
		if keys, more, err = o.BlockedKeys(t.Context(), req); err != nil || len(keys) == 0 {
			t.Fatalf("%d keys, more %v, %v, after %d", len(keys), more, err, len(got))
		}
		for i := range keys {
			got = append(got, keys[i].Key)
		}
		req.After = got[len(got)-1]
	}
	if len(got) != blocked || got[0] != fmt.Sprintf("k%06d", retrying-blocked+1) {
		t.Errorf("%d keys from %s, want the last %d", len(got), got[0], blocked)
	}
}

// OR-05: keys behind a topic without a queue are found among thousands that only wait for their turn, and so is the
// end.
func TestKeysBehindATopicAmongOthers(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, id, state, retry, due_at, attempts, last_error)
		VALUES ('nowhere', '', 'trial', $1, true, now(), 1, $2)`, int(core.StateFailed), waybill.ErrUnroutable.Error())
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, id, key)
		SELECT CASE WHEN i % 1500 = 0 THEN 'nowhere' ELSE 't.x' END, '', i::text, 'k' || lpad(i::text, 6, '0') FROM generate_series(1, 3100) i`)
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, id, key)
		SELECT 't.x', '', 'behind' || i, 'k001500' FROM generate_series(1, $1) i`, admin.MaxPageLimit+1)
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, id, key) VALUES ('t.x', '', 'one', 'k003000')`)
	keys, more, err := o.BlockedKeys(t.Context(), admin.BlockedKeysRequest{Route: waybill.DefaultRoute})
	if err != nil || more || len(keys) != 2 {
		t.Fatalf("%d keys, more %v, %v; want 2", len(keys), more, err)
	}
	for i, want := range []string{"k001500 1500 topic 1000", "k003000 3000 topic 1"} {
		if got := fmt.Sprint(keys[i].Key, " ", keys[i].Head.Envelope.ID, " ", keys[i].Cause, " ", keys[i].Behind); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// OR-05: of a record that another program has locked, the process is named, with its program and role.
func TestLockedByIsNamed(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, id) VALUES ('t.x', '', 'a'), ('t.x', '', 'b')`)
	tx := begin(t, pool, "SET LOCAL application_name = 'reports'")
	var pid int
	var user string
	if err := tx.QueryRow(t.Context(), "SELECT pg_backend_pid(), current_user").Scan(&pid, &user); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM waybill.waybill_outbox WHERE id = 'a' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]admin.WaitCause{"a": admin.WaitLock, "b": admin.WaitNoRelay} {
		st, err := o.Inspect(t.Context(), waybill.DefaultRoute, id)
		if err != nil {
			t.Fatal(err)
		}
		w, err := admin.WhyWaits(t.Context(), o, &st, false)
		if err != nil || w.Cause != want {
			t.Fatalf("%s waits for %q, %v; want %q", id, w.Cause, err, want)
		}
		if text := fmt.Sprintf("process %d, reports, of role %s", pid, user); want == admin.WaitLock && !strings.Contains(w.String(), text) {
			t.Errorf("%q does not have %q", w.String(), text)
		}
	}
}
