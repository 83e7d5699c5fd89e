package postgres_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// candidates are all that differ for admin.RedriveRequest.Refusal, but Last. A failed record is live itself, so that no
// other live one can have its dedupe key.
func candidates() []admin.Candidate {
	type ended struct {
		state  core.State
		reason waybill.Reason
	}
	var all []admin.Candidate
	for _, e := range []ended{
		{core.StateFailed, waybill.ReasonNone},
		{core.StateAbandoned, waybill.ReasonRejected},
		{core.StateAbandoned, waybill.ReasonSkipped},
		{core.StateAbandoned, waybill.ReasonCancelled},
		{core.StateAbandoned, "an_adapter's_own"},
	} {
		for bits := range 16 {
			c := admin.Candidate{State: e.state, Reason: e.reason, Expired: bits&1 != 0, Keyed: bits&2 != 0, Taken: bits&4 != 0}
			if bits&8 != 0 {
				c.Age = 2 * time.Hour
			}
			if e.state != core.StateFailed || !c.Taken {
				all = append(all, c)
			}
		}
	}
	return all
}

// redriveRequests are all that differ for admin.RedriveRequest.Refusal.
func redriveRequests() []admin.RedriveRequest {
	var all []admin.RedriveRequest
	for bits := range 8 {
		r := admin.RedriveRequest{Force: bits&1 != 0, BlockAfterAbandon: bits&2 != 0}
		if bits&4 != 0 {
			r.InboxRetention = time.Hour
		}
		all = append(all, r)
	}
	return all
}

// insertCandidate puts a row in that is as c says.
func insertCandidate(t *testing.T, pool *pgxpool.Pool, id string, c *admin.Candidate) {
	t.Helper()
	if c.Taken {
		exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, dedupe_key) VALUES ('t', '', $1)`, id)
	}
	exec(t, pool, `
INSERT INTO waybill.waybill_outbox (id, topic, body, state, reason, dedupe_key, ready_since, key, expires_at, retry, due_at, settled_at)
SELECT $1, 't', '', $2, $3, $1, now() - $4 * interval '1 microsecond', CASE WHEN $5 THEN 'k' ELSE '' END,
    now() + CASE WHEN $6 THEN -1 ELSE 1 END * interval '1 hour',
    NOT $7, CASE WHEN NOT $7 THEN now() + interval '1 hour' END, CASE WHEN $7 THEN now() END`,
		id, int16(c.State), string(c.Reason), c.Age.Microseconds(), c.Keyed, c.Expired, c.State.Terminal())
}

// DB-11: the statement decides as admin.RedriveRequest.Refusal does.
func TestRedriveRefusesByTheRule(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	compare := func(id string, c *admin.Candidate, req admin.RedriveRequest) {
		t.Helper()
		req.Filter.IDs = []string{id}
		got, err := o.Redrive(t.Context(), req)
		var want admin.Redriven
		want.Count(req.Refusal(c))
		if err != nil || got.Matched != 1 || got.Changed != want.Changed || len(got.Refused) != len(want.Refused) {
			t.Errorf("%+v, %+v: %+v %v, want %+v", req, *c, got, err, want)
			return
		}
		for cause, n := range want.Refused {
			if got.Refused[cause] != n {
				t.Errorf("%+v, %+v: %v, want %v", req, *c, got.Refused, want.Refused)
			}
		}
	}
	dry := func(id string, c *admin.Candidate) {
		t.Helper()
		for _, req := range redriveRequests() {
			req.DryRun = true
			compare(id, c, req)
		}
	}
	all := candidates()
	for i := range all {
		id := strconv.Itoa(i)
		insertCandidate(t, pool, id, &all[i])
		last := all[i]
		last.Last = true
		dry(id, &last)
	}
	stage(t, pool, o, message())
	for i := range all {
		dry(strconv.Itoa(i), &all[i])
	}
	requests := redriveRequests()
	for i := range all {
		compare(strconv.Itoa(i), &all[i], requests[i%len(requests)])
	}
}
