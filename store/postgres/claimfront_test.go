package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// RL-02: all that is at the front is claimed without looking at it row by row only if nothing there needs to be looked at.
func TestClaimAllAtTheFront(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	exec, _ := filler(t, pool)
	const insert = "INSERT INTO waybill.waybill_outbox (topic, body, key, lease_until, crashes) "
	for name, tc := range map[string]struct {
		odd     string // the third of five rows
		order   core.Order
		bytes   int64
		clean   bool
		claimed int
	}{
		"nothing":               {odd: "", order: core.OrderPerKey, clean: true},
		"plain":                 {odd: "'xx', '', NULL, 0", order: core.OrderPerKey, clean: true, claimed: 5},
		"a key":                 {odd: "'xx', 'k', NULL, 0", order: core.OrderPerKey},
		"a key, best effort":    {odd: "'xx', 'k', NULL, 0", order: core.OrderBestEffort, clean: true, claimed: 5},
		"leased":                {odd: "'xx', '', now() + interval '1 hour', 0", order: core.OrderBestEffort},
		"the lease ended":       {odd: "'xx', '', now() - interval '1 hour', 0", order: core.OrderBestEffort},
		"a suspect":             {odd: "'xx', '', NULL, 2", order: core.OrderBestEffort},
		"once crashed":          {odd: "'xx', '', NULL, 1", order: core.OrderBestEffort, clean: true, claimed: 5},
		"as many bytes as may":  {odd: "'xxxxxx', '', NULL, 0", order: core.OrderBestEffort, bytes: 14, clean: true, claimed: 5},
		"more bytes than may":   {odd: "'xxxxxx', '', NULL, 0", order: core.OrderBestEffort, bytes: 13},
		"every one is too long": {odd: "'xx', '', NULL, 0", order: core.OrderBestEffort, bytes: 1},
	} {
		exec("TRUNCATE waybill.waybill_outbox")
		if tc.odd != "" {
			exec(insert + "SELECT 't', 'xx', '', NULL, 0 FROM generate_series(1, 2)")
			exec(insert + "SELECT 't', " + tc.odd)
			exec(insert + "SELECT 't', 'xx', '', NULL, 0 FROM generate_series(1, 2)")
		}
		req := core.ClaimRequest{Routes: []core.RouteOrder{{Route: core.DefaultRoute, Order: tc.order}}, MaxRecords: 10, MaxBytes: tc.bytes, Lease: time.Minute, Session: 1}
		o.claims.init(o.names)
		o.claims.plain, o.claims.general = plainClaims, 0
		v := o.claims.plan(&req)
		if !v.simple {
			t.Fatalf("%s: not tried", name)
		}
		a, err := o.claimFront(t.Context(), &req, v)
		if err != nil || a.clean != tc.clean || len(a.records) != tc.claimed {
			t.Errorf("%s: clean %t, %d claimed, want %t, %d; %v", name, a.clean, len(a.records), tc.clean, tc.claimed, err)
		}
	}
}

// OR-02: rows of keys are claimed without looking at each key only if nothing can hold one back, and then all that were seen or none.
func TestClaimAllAtTheFrontInOrder(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	exec, _ := filler(t, pool)
	const (
		insert  = "INSERT INTO waybill.waybill_outbox (seq, topic, body, key, lease_until, lease_token, holds, due_at, crashes) OVERRIDING SYSTEM VALUE "
		session = 7
		foreign = "8::bigint << 32"
		own     = "7::bigint << 32"
		soon    = "now() + interval '1 hour'"
		past    = "now() - interval '1 hour'"
	)
	for name, tc := range map[string]struct {
		odd       string // one more row; those at the front are 100, 110 to 140
		floor     int64
		bytes     int64
		share     int
		block     bool
		untried   bool
		elsewhere bool // another relay has the lock of a shard
		locked    bool // a transaction has locked the odd row
		clean     bool
		claimed   int
		behind    int64
	}{
		"nothing else":                       {clean: true, claimed: 5},
		"without a key behind the front":     {odd: "50, 't', '', '', NULL, 0, false, NULL, 0", clean: true, claimed: 5},
		"own behind the front":               {odd: "50, 't', '', 'a', " + soon + ", " + own + ", false, NULL, 0", clean: true, claimed: 5, behind: 50},
		"own whose lease ended":              {odd: "50, 't', '', 'a', " + past + ", " + own + ", false, NULL, 0"},
		"another's behind the front":         {odd: "50, 't', '', 'a', " + soon + ", " + foreign + ", false, NULL, 0"},
		"another's below the floor":          {odd: "50, 't', '', 'a', " + soon + ", " + foreign + ", false, NULL, 0", floor: 51, clean: true, claimed: 5},
		"committed late":                     {odd: "50, 't', '', 'a', NULL, 0, false, NULL, 0"},
		"put back":                           {odd: "50, 't', '', 'a', NULL, 0, true, NULL, 0"},
		"put back, below the floor":          {odd: "50, 't', '', 'a', NULL, 0, true, NULL, 0", floor: 51},
		"a retry":                            {odd: "50, 't', '', 'a', NULL, 0, true, " + soon + ", 0"},
		"a schedule":                         {odd: "50, 't', '', 'a', NULL, 0, false, " + soon + ", 0", clean: true, claimed: 5},
		"a schedule that came due, locked":   {odd: "50, 't', '', 'a', NULL, 0, false, " + past + ", 0", locked: true},
		"promoted, at the front":             {odd: "125, 't', '', 'a', NULL, 0, true, NULL, 0"},
		"another's at the front":             {odd: "125, 't', '', 'a', " + soon + ", " + foreign + ", false, NULL, 0"},
		"own at the front":                   {odd: "125, 't', '', 'a', " + soon + ", " + own + ", false, NULL, 0"},
		"a suspect at the front":             {odd: "125, 't', '', 'a', NULL, 0, false, NULL, 2"},
		"more bytes than may":                {bytes: 4},
		"another relay claims":               {elsewhere: true},
		"another relay claimed not long ago": {share: 32, untried: true},
		"the route blocks":                   {block: true, untried: true},
	} {
		exec("TRUNCATE waybill.waybill_outbox")
		exec(insert + "SELECT 90 + 10 * i, 't', 'x', 'abc'::char(1), NULL, 0, false, NULL, 0 FROM generate_series(1, 5) i")
		if tc.odd != "" {
			exec(insert + "VALUES (" + tc.odd + ")")
		}
		req := core.ClaimRequest{
			Routes:     []core.RouteOrder{{Route: core.DefaultRoute, Order: core.OrderPerKey, BlockAfterAbandon: tc.block}},
			MaxRecords: 10, MaxBytes: tc.bytes, Lease: time.Minute, Session: session,
		}
		o.claims.init(o.names)
		o.claims.plain, o.claims.general, o.claims.share = 0, 0, cmp.Or(tc.share, shards)
		o.claims.at[core.DefaultRoute] = &position{front: 60, floor: tc.floor, ended: time.Now()}
		v := o.claims.plan(&req)
		if v.simple == tc.untried {
			t.Errorf("%s: tried: %t", name, v.simple)
		}
		if !v.simple {
			continue
		}
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if tc.elsewhere {
			if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1::int, 63)", o.claims.class); err != nil {
				t.Fatal(err)
			}
		}
		if tc.locked {
			if _, err := tx.Exec(t.Context(), "SELECT FROM waybill.waybill_outbox WHERE seq = 50 FOR UPDATE"); err != nil {
				t.Fatal(err)
			}
		}
		a, err := o.claimFront(t.Context(), &req, v)
		if err != nil || a.clean != tc.clean || len(a.records) != tc.claimed || a.clean && a.behind != tc.behind {
			t.Errorf("%s: clean %t, %d claimed, %d behind; want %t, %d, %d; %v", name, a.clean, len(a.records), a.behind, tc.clean, tc.claimed, tc.behind, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// OR-02: of rows of keys, none is taken if one of those that were seen cannot be, or if there is another one by then.
func TestClaimAllAtTheFrontInOrderOrNone(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	exec, _ := filler(t, pool)
	const insert = "INSERT INTO waybill.waybill_outbox (seq, topic, body, key) OVERRIDING SYSTEM VALUE "
	for name, tc := range map[string]struct {
		meanwhile string
		claimed   int
	}{
		"nothing happens":       {"SELECT", 3},
		"one more behind":       {insert + "VALUES (35, 't', 'x', 'k')", 3},
		"one more among them":   {insert + "VALUES (15, 't', 'x', 'k')", 0},
		"one is put off":        {"UPDATE waybill.waybill_outbox SET due_at = now() + interval '1 hour' WHERE seq = 20", 0},
		"one is cancelled":      {"DELETE FROM waybill.waybill_outbox WHERE seq = 20", 0},
		"one is leased":         {"UPDATE waybill.waybill_outbox SET lease_until = now() + interval '1 hour' WHERE seq = 20", 0},
		"one comes, one leaves": {"WITH d AS (DELETE FROM waybill.waybill_outbox WHERE seq = 10) " + insert + "VALUES (15, 't', 'x', 'k'), (16, 't', 'x', 'k')", 0},
		"another one":           {"WITH d AS (DELETE FROM waybill.waybill_outbox WHERE seq = 10) " + insert + "VALUES (15, 't', 'x', 'k')", 0},
		"others of their sum":   {"WITH d AS (DELETE FROM waybill.waybill_outbox WHERE seq = 20) " + insert + "VALUES (9, 't', 'x', 'k'), (11, 't', 'x', 'k')", 0},
	} {
		exec("TRUNCATE waybill.waybill_outbox")
		exec(insert + "SELECT 10 * i, 't', 'x', 'k' FROM generate_series(1, 3) i")
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT set_config('waybill.shards', '-1', true)"); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), o.claims.frontKeyed, core.DefaultRoute, 0, 3, 1000, 0, 7); err != nil {
			t.Fatal(err)
		}
		exec(tc.meanwhile)
		tag, err := tx.Exec(t.Context(), o.claims.takeFrontKeyed, core.DefaultRoute, 0, 3, "me", 1, 1_000_000)
		if err != nil || int(tag.RowsAffected()) != tc.claimed {
			t.Errorf("%s: %d claimed, want %d; %v", name, tag.RowsAffected(), tc.claimed, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	exec("TRUNCATE waybill.waybill_outbox")
	exec(insert + "SELECT 10 * i, 't', 'x', 'k' FROM generate_series(1, 3) i")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM waybill.waybill_outbox WHERE seq = 10 FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	req := core.ClaimRequest{Routes: []core.RouteOrder{{Route: core.DefaultRoute, Order: core.OrderPerKey}}, MaxRecords: 10, Lease: time.Minute, Session: 7}
	for range 10 {
		if c, err := o.Claim(t.Context(), req); err != nil || len(c.Records) > 0 {
			t.Errorf("%d claimed behind a locked one of their key; %v", len(c.Records), err)
		}
	}
}

// RL-02: a record that another transaction has locked is not lost to the front, which has passed it.
func TestClaimAllAtTheFrontLocked(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	if _, err := pool.Exec(t.Context(), "INSERT INTO waybill.waybill_outbox (topic, body) SELECT 't', 'x' FROM generate_series(1, 20)"); err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM waybill.waybill_outbox WHERE seq = (SELECT min(seq) + 4 FROM waybill.waybill_outbox) FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	req := core.ClaimRequest{Routes: []core.RouteOrder{{Route: core.DefaultRoute, Order: core.OrderPerKey}}, MaxRecords: 10, Lease: time.Minute, Session: 1}
	var got []int64
	claim := func() int {
		t.Helper()
		c, err := o.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for i := range c.Records {
			got = append(got, c.Records[i].Seq)
		}
		return len(c.Records)
	}
	for range 10 {
		claim()
	}
	if len(got) != 19 {
		t.Errorf("%d claimed beside a locked one", len(got))
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); len(got) < 20 && time.Now().Before(deadline); {
		claim()
	}
	slices.Sort(got)
	if len(slices.Compact(got)) != 20 {
		t.Errorf("claimed: %v", got)
	}
}

// RL-03: the records of a claim are settled as one range only if each of them is.
func TestSettleWholeClaim(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	if _, err := pool.Exec(t.Context(), "INSERT INTO waybill.waybill_outbox (topic, body) SELECT 't', 'x' FROM generate_series(1, 6)"); err != nil {
		t.Fatal(err)
	}
	req := core.ClaimRequest{Routes: []core.RouteOrder{{Route: core.DefaultRoute, Order: core.OrderPerKey}}, MaxRecords: 3, Lease: time.Minute, Session: 1}
	settle := func(rs ...*core.Record) core.Results {
		out := make([]core.Outcome, len(rs))
		for i, r := range rs {
			out[i] = core.Published(r)
		}
		return o.Settle(t.Context(), out)
	}
	left := func() (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM waybill.waybill_outbox").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	c, err := o.Claim(t.Context(), req)
	if err != nil || len(c.Records) != 3 {
		t.Fatal(c, err)
	}
	r := c.Records
	res := settle(&r[0], &r[0], &r[2])
	if res[0] != nil || !errors.Is(res[1], core.ErrLeaseLost) || res[2] != nil || left() != 4 {
		t.Errorf("one twice: %v, %d left", res, left())
	}
	if res := settle(&r[1]); res[0] != nil || left() != 3 {
		t.Errorf("the rest: %v, %d left", res, left())
	}
	c, err = o.Claim(t.Context(), req)
	if err != nil || len(c.Records) != 3 {
		t.Fatal(c, err)
	}
	r = c.Records
	if _, err := pool.Exec(t.Context(), "UPDATE waybill.waybill_outbox SET lease_token = 1 WHERE seq = $1", r[1].Seq); err != nil {
		t.Fatal(err)
	}
	res = settle(&r[0], &r[1], &r[2])
	if res[0] != nil || !errors.Is(res[1], core.ErrLeaseLost) || res[2] != nil || left() != 1 {
		t.Errorf("one lost: %v, %d left", res, left())
	}
}

// RL-02: what is committed between the look and the taking is judged anew.
func TestClaimAllAtTheFrontChanged(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	exec, _ := filler(t, pool)
	const insert = "INSERT INTO waybill.waybill_outbox (seq, topic, body, key) OVERRIDING SYSTEM VALUE "
	exec(insert + "SELECT 10 * i, 't', 'x', '' FROM generate_series(1, 4) i")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), o.claims.front, core.DefaultRoute, 0, 10, 1000, true); err != nil {
		t.Fatal(err)
	}
	exec("UPDATE waybill.waybill_outbox SET lease_until = now() + interval '1 hour' WHERE seq = 10")
	exec("UPDATE waybill.waybill_outbox SET due_at = now() + interval '1 hour' WHERE seq = 20")
	exec("UPDATE waybill.waybill_outbox SET crashes = 2 WHERE seq = 30")
	exec(insert + "VALUES (15, 't', 'x', 'k'), (16, 't', 'x', ''), (50, 't', 'x', '')")
	rows, err := tx.Query(t.Context(), o.claims.takeFront, core.DefaultRoute, 0, 10, "me", 1, 1_000_000, true)
	if err != nil {
		t.Fatal(err)
	}
	var a answer
	if err := a.readRecords(rows, nil, "/s"); err != nil {
		t.Fatal(err)
	}
	a.lease(1, time.Minute)
	if len(a.records) != 2 || a.records[0].Seq != 16 || a.records[1].Seq != 40 {
		t.Errorf("%+v", a.records)
	}
}
