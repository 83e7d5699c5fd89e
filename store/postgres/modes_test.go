package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// withParam adds a parameter to a connection string, which may have some already.
func withParam(dsn, param string) string {
	if strings.Contains(dsn, "?") {
		return dsn + "&" + param
	}
	return dsn + "?" + param
}

// DB-10: everything works in each of pgx's modes, as poolers need some of them, also if times and bodies have another
// form as text than pgx expects, and if backslashes in literals mean escapes.
func TestQueryModes(t *testing.T) {
	t.Parallel()
	for _, mode := range queryExecModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			params := "default_query_exec_mode=" + mode + "&datestyle=SQL,DMY&bytea_output=escape"
			if mode != "simple_protocol" { // pgx refuses that combination
				params += "&standard_conforming_strings=off"
			}
			pool := openPool(t, withParam(testenv.Postgres(t).DSN, params))
			everyCall(t, pool)
		})
	}
}

// everyCall makes a new outbox in the database of pool, and calls each method of it.
func everyCall(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	o := outboxOn(t, pool, postgres.Options{})
	if err := o.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := stage(t, pool, o, message(waybill.Key("k")), message(waybill.Key("k"), waybill.Header("a", "b'\\c")), message(waybill.Delay(time.Hour)), message(waybill.DedupeKey("d")), message())
	if got := cancel(t, pool, o, waybill.CancelKey{ID: s[2].ID}); got[0] != waybill.CancelDone {
		t.Errorf("cancelled: %q", got)
	}
	if s := stage(t, pool, o, message(waybill.Replace("d")), message(waybill.DedupeKey("d"))); s[0].Replaced != waybill.CancelDone || !s[1].Duplicate {
		t.Errorf("replaced: %+v", s)
	}
	c := holdNext(t, o, want(10))
	if len(c.Records) != 4 {
		t.Fatalf("%d records", len(c.Records))
	}
	settle(t, o, core.Published(&c.Records[2]))
	settle(t, o, core.Retry(&c.Records[0], errNo, 0), core.Abandon(&c.Records[1], waybill.ReasonRejected, errNo), core.Release(&c.Records[3], 0, true))
	self := session(t, o, waybill.DefaultRoute)
	p, err := o.Read(t.Context(), self, core.ReadRequest{
		Slots: []core.RouteSlots{all(waybill.DefaultRoute)}, NewlyOwned: []core.RouteSlots{all(waybill.DefaultRoute)}, BlockingRoutes: []string{waybill.DefaultRoute},
		Keys: []core.KeyRange{{Route: waybill.DefaultRoute, Key: "k", UpToSeq: 1 << 62}}, Recheck: []core.Ref{c.Records[0].Ref, c.Records[3].Ref},
	})
	if err != nil || len(p.Blocking) != 2 || len(p.Keys[0].Blocking) != 2 || len(p.Rechecked) != 1 || len(p.RecheckedBlocking) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	if d, err := o.Due(t.Context(), self, []core.RouteSlots{all(waybill.DefaultRoute)}, 10); err != nil || len(d.Retries) != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if ok, err := o.ReleasePartition(t.Context(), self, partitionsOf(t, o, waybill.DefaultRoute)[0], nil); err != nil || !ok {
		t.Error(ok, err)
	}
	if r, err := o.Redrive(t.Context(), admin.RedriveRequest{Filter: admin.Filter{Reasons: []waybill.Reason{waybill.ReasonRejected}}, Force: true}); err != nil || r.Changed != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if l, err := o.List(t.Context(), admin.Filter{}, admin.PageRequest{}); err != nil || len(l.Records) != 3 {
		t.Errorf("%+v, %v", l, err)
	}
	if _, _, err := o.BlockedKeys(t.Context(), admin.BlockedKeysRequest{Route: waybill.DefaultRoute, BlockAfterAbandon: true, Limit: 10}); err != nil {
		t.Error(err)
	}
	if _, err := o.Counts(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := o.Clean(t.Context(), "me", time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := o.Wait(t.Context(), []string{waybill.DefaultRoute}, 10*time.Millisecond); err != nil {
		t.Error(err)
	}
	if d, err := o.Drift(t.Context()); err != nil || d != nil {
		t.Error(d, err)
	}
}
