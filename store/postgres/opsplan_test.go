package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// DB-11 DB-12 DB-20: the queries of operators go by an index and read as much as their page and budget allow, however
// large the table is, whether the planner knows the table or not.
func TestOperatorPlans(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	exec, insert := filler(t, pool)
	insert(15_000, "key", "'k' || i % 500")
	insert(15_000, "due_at, key", "now() + interval '1 day', 'k' || i % 500")
	insert(15_000, "state, settled_at, reason, blocks, key", "5, now(), 'rejected', true, 'a' || i % 500")
	insert(5000, "state, retry, due_at, attempts, key", "4, true, now() + interval '1 hour', 1, 'b' || i % 500")

	page := admin.PageRequest{After: 20_000, Limit: 100, Budget: 1000}
	list := func(f admin.Filter) (string, []any) { return listSQL(walkOf(&f)), filterArgs(&f, page) }
	redrive := func(f admin.Filter, dry bool) (string, []any) {
		return redriveSQL(walkOf(&f), dry), append(filterArgs(&f, page), false, true, int64(0), false, true, []byte(nil), "")
	}
	type query struct {
		name    string
		sql     string
		args    []any
		buffers int64
	}
	var queries []query
	add := func(name string, buffers int64, sql string, args []any) {
		queries = append(queries, query{name, sql, args, buffers})
	}
	with := func(name string, buffers int64, fn func() (string, []any)) {
		sql, args := fn()
		add(name, buffers, sql, args)
	}
	nothing := admin.Filter{Topics: []string{"other"}}
	abandoned := admin.Filter{Reasons: []waybill.Reason{waybill.ReasonRejected}}
	none := admin.Filter{States: []core.State{core.StateAbandoned}, Topics: []string{"other"}}
	ids := admin.Filter{IDs: []string{"000000001", "000000002", "unknown"}}
	with("list: a page", 1000, func() (string, []any) { return list(admin.Filter{}) })
	with("list: a budget without a match", 2500, func() (string, []any) { return list(nothing) })
	with("list: abandoned", 1500, func() (string, []any) { return list(abandoned) })
	with("list: abandoned without a match", 2500, func() (string, []any) { return list(none) })
	page.After = 0
	with("list: ids", 2000, func() (string, []any) { return list(ids) })
	page.After = 40_000
	with("redrive: abandoned", 6000, func() (string, []any) { return redrive(abandoned, false) })
	with("redrive: a page", 6000, func() (string, []any) {
		return redrive(admin.Filter{States: []core.State{core.StateFailed, core.StateAbandoned}}, false)
	})
	with("redrive: a dry run", 3000, func() (string, []any) { return redrive(abandoned, true) })
	with("redrive: ids", 200, func() (string, []any) { return redrive(ids, false) })
	purge := func(f admin.Filter, dry bool) (string, []any) {
		return purgeRecordsSQL(walkOf(&f), dry), append(filterArgs(&f, page), true, true)
	}
	with("purge: a tenant without a match", 2500, func() (string, []any) { return purge(admin.Filter{Tenants: []string{"other"}}, false) })
	with("purge: abandoned", 6000, func() (string, []any) { return purge(abandoned, false) })
	with("purge: a dry run", 3000, func() (string, []any) { return purge(abandoned, true) })
	with("purge: ids", 2000, func() (string, []any) { return purge(ids, false) })
	add("inspect", 20, inspectSQL, []any{waybill.DefaultRoute, "000000007", int64(0)})
	text := waybill.ErrUnroutable.Error()
	add("blocked keys", 1600, blockedSQL, []any{waybill.DefaultRoute, "a1", true, 20, text})
	add("what is before a record", 40, aheadSQL, []any{waybill.DefaultRoute, int64(507), "k7", true})
	add("what tries for a topic", 1600, trialSQL, []any{waybill.DefaultRoute, int64(507), "t", text})
	add("who has locked a record", 40, lockSQL, []any{waybill.DefaultRoute, int64(507)})
	add("lock a head", 40, lockHeadSQL, []any{waybill.DefaultRoute, "000000007", "k7"})
	add("keep that a route is unserved", 60, keepUnservedSQL, []any{waybill.DefaultRoute, "000000007", "k7"})
	add("keep the owner of a head", 60, keepPartitionSQL, []any{waybill.DefaultRoute, "000000007", "k7"})
	add("skip a head", 200, decideSQL(false), []any{waybill.DefaultRoute, "000000007", "k7", "skipped", true})
	add("requeue a head", 200, decideSQL(true), []any{waybill.DefaultRoute, "000000007", "k7", "", true})
	var routes, hundred []string
	var seqs, numbers []int64
	for i := range 100 {
		routes, seqs = append(routes, waybill.DefaultRoute), append(seqs, int64(100*i+1))
		hundred, numbers = append(hundred, fmt.Sprintf("%09d", 100*i+1)), append(numbers, 0)
	}
	add("keep that routes are unserved", 60, keepRoutesUnservedSQL, []any{routes[:1]})
	add("keep routes", 20, keepRoutesSQL, []any{routes[:1]})
	add("keep partitions without an owner", 150, keepPartitionsSQL, []any{routes[:1]})
	add("end a hundred", 5000, decideRecordsSQL, []any{routes, seqs, hundred, numbers, "skipped", true, 1, 2, 3, 4})
	for _, when := range []string{"unknown", "analyzed"} {
		for _, q := range queries {
			p := explain(t, pool, o.names, q.sql, q.args...)
			p.check(t, q.name+" ("+when+")", q.buffers)
		}
		exec("ANALYZE waybill.waybill_outbox")
	}
}

// DB-20: records that are near each other are settled by one pass over their range, with any plan that is kept.
func TestSettlePlan(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	exec, insert := filler(t, pool)
	insert(20_000, "key", "'k' || i % 500")
	exec("INSERT INTO waybill.waybill_outbox_members (session, heartbeats, lease, presence, capacity, free_capacity, name, routes, partitions, unavailable, handed_out, oldest_handed_out) VALUES (1, 1, 1, 0, 1, 1, '', '{}', '{}', '{}', '{}', '{}')")
	var seqs []int64
	var ids []string
	for i := int64(9001); i <= 9500; i++ {
		seqs, ids = append(seqs, i), append(ids, fmt.Sprintf("%09d", i))
	}
	for _, when := range []string{"unknown", "analyzed"} {
		p := explain(t, pool, o.names, deleteNearSQL, int64(1), waybill.DefaultRoute, seqs[0], seqs[499], seqs, ids)
		p.check(t, when, 1600)
		hashed := false
		p.walk(func(n *plan) { hashed = hashed || strings.Contains(n.Filter, "hashed") })
		if !hashed {
			t.Errorf("%s: the list is gone through for each record", when)
		}
		exec("ANALYZE waybill.waybill_outbox")
	}
}
