package postgres

import (
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// RL-02: a claim that looks for a suspect puts in line what came due, which the next claim that does not then looks for.
func TestSuspectsClaimPromotesForAll(t *testing.T) {
	t.Parallel()
	var c claimer
	c.init(newNames("", "", ""))
	req := core.ClaimRequest{Routes: []core.RouteOrder{{Route: "r"}}, MaxRecords: 10}
	c.position(&req, "r").front = 10
	req.Alone = true
	v := c.plan(&req)
	v.promoted["r"] = promotion{least: 5, rows: 1}
	n := len(v.routes)
	c.advance(&req, v, &answer{rows: make([]int64, n), last: make([]int64, n), least: make([]int64, n), remaining: make([]int64, n), open: make([]int64, n), sequence: 10})
	if p := c.at["r"]; !p.dirty {
		t.Error("nobody looks behind the front")
	}
}

// OR-02: of a key with many rows behind the front, each settle leads to the next ones: no lap goes past them all each time.
func TestManyRowsOfAKeyBehindTheFront(t *testing.T) {
	t.Parallel()
	o, pool := newPlanOutbox(t)
	_, insert := filler(t, pool)
	const rows = 5000
	insert(rows, "key", "'k'")
	o.claims.at[core.DefaultRoute] = &position{front: rows, ended: time.Now()}
	req := core.ClaimRequest{Routes: []core.RouteOrder{{Route: core.DefaultRoute}}, MaxRecords: 500, Lease: time.Minute, Session: 7}
	begun := o.claims.serial.Load()
	for n := 0; n < rows; {
		c, err := o.Claim(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]core.Outcome, len(c.Records))
		for i := range out {
			out[i] = core.Published(&c.Records[i])
		}
		if err := o.Settle(t.Context(), out).FirstErr(); err != nil {
			t.Fatal(err)
		}
		n += len(out)
		if looks := o.claims.serial.Load() - begun; looks > 200 {
			t.Fatalf("%d of %d rows after %d looks", n, rows, looks)
		}
	}
}
