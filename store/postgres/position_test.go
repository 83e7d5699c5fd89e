package postgres

import (
	"testing"

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
	v.promoted["r"] = 5
	n := len(v.routes)
	c.advance(&req, v, &answer{rows: make([]int64, n), last: make([]int64, n), least: make([]int64, n), remaining: make([]int64, n), open: make([]int64, n), sequence: 10})
	if p := c.at["r"]; !p.dirty {
		t.Error("nobody looks behind the front")
	}
}
