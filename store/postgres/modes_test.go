package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
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

// DB-10: everything works in each of pgx's modes, as poolers need some of them.
func TestQueryModes(t *testing.T) {
	t.Parallel()
	for _, mode := range queryExecModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pool := openPool(t, withParam(testenv.Postgres(t).DSN, "default_query_exec_mode="+mode))
			o := outboxOn(t, pool, postgres.Options{})
			if err := o.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := stage(t, pool, o, message(core.Key("k")), message(core.Key("k"), core.Header("a", "b'\\c")), message(core.Delay(time.Hour)), message(core.DedupeKey("d")), message())
			if got := cancel(t, pool, o, core.CancelKey{ID: s[2].ID}); got[0] != core.CancelDone {
				t.Errorf("cancelled: %q", got)
			}
			if s := stage(t, pool, o, message(core.Replace("d")), message(core.DedupeKey("d"))); s[0].Replaced != core.CancelDone || !s[1].Duplicate {
				t.Errorf("replaced: %+v", s)
			}
			c := claim(t, o, want(10))
			if len(c.Records) != 4 {
				t.Fatalf("%d records", len(c.Records))
			}
			settle(t, o, outbox.Published(&c.Records[2]))
			settle(t, o, outbox.Retry(&c.Records[0], errNo, 0), outbox.Abandon(&c.Records[1], core.ReasonRejected, errNo), outbox.Release(&c.Records[3], 0, true))
			self := session(t, o, core.DefaultRoute)
			p, err := o.Read(t.Context(), self, outbox.Look{
				Parts: []outbox.Part{all(core.DefaultRoute)}, Fresh: []outbox.Part{all(core.DefaultRoute)}, Blocks: []string{core.DefaultRoute},
				Keys: []outbox.KeyRange{{Route: core.DefaultRoute, Key: "k", To: 1 << 62}}, Again: []outbox.Ref{c.Records[0].Ref, c.Records[3].Ref},
			})
			if err != nil || len(p.Waiting) != 2 || len(p.Keys[0].Waiting) != 2 || len(p.Again) != 1 || len(p.AgainWaiting) != 1 {
				t.Errorf("%+v, %v", p, err)
			}
			if d, err := o.Due(t.Context(), self, []outbox.Part{all(core.DefaultRoute)}, 10); err != nil || len(d.Retries) != 1 {
				t.Errorf("%+v, %v", d, err)
			}
			if ok, err := o.GiveUp(t.Context(), self, unitsOf(t, o, core.DefaultRoute)[0], nil); err != nil || !ok {
				t.Error(ok, err)
			}
			if r, err := o.Redrive(t.Context(), core.RedriveRequest{Filter: core.Filter{Reasons: []core.Reason{core.ReasonRejected}}, Force: true}); err != nil || r.Changed != 1 {
				t.Errorf("%+v, %v", r, err)
			}
			if l, err := o.List(t.Context(), core.Filter{}, core.Page{}); err != nil || len(l.Records) != 3 {
				t.Errorf("%+v, %v", l, err)
			}
			if _, _, err := o.BlockedKeys(t.Context(), core.BlockedKeysRequest{Route: core.DefaultRoute, BlockAfterAbandon: true, Limit: 10}); err != nil {
				t.Error(err)
			}
			if _, err := o.Counts(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := o.Clean(t.Context(), "me", time.Minute); err != nil {
				t.Error(err)
			}
			if _, err := o.Wait(t.Context(), []string{core.DefaultRoute}, 10*time.Millisecond); err != nil {
				t.Error(err)
			}
			if d, err := o.Drift(t.Context()); err != nil || d != nil {
				t.Error(d, err)
			}
		})
	}
}
