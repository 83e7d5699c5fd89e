package postgres_test

import (
	"fmt"
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
