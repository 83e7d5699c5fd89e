package mongo

// An operator must know whether a count is exact, an estimate, or the least that there is.

import (
	"context"
	"slices"
	"testing"
	"time"

	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// DB-11: up to 10,000 records of a kind a count is exact. Above, that of ready ones is an estimate, and that of others
// the least that there is.
func TestCountsSayHowExactTheyAre(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	if s.countLimit != 10_000 {
		t.Errorf("counts are exact up to %d", s.countLimit)
	}
	const limit = 10 // so many would take long
	s.countLimit = limit
	for _, c := range []struct {
		route string
		n     int
		delay time.Duration
	}{{"ready", limit + 5, 0}, {"ready up to the limit", limit, 0}, {"timers", limit + 5, time.Hour}, {"timers up to the limit", limit, time.Hour}} {
		msg := waybill.RawMessage("t.x", "", nil, waybill.Routes(c.route), waybill.Delay(c.delay))
		in(t, s, func(ctx context.Context, tx *driver.Session) error {
			_, err := s.Stage(ctx, tx, slices.Repeat([]waybill.Message{msg}, c.n)...)
			return err
		})
	}
	counts, err := s.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range counts {
		counts[i].Oldest = 0
	}
	if want := []admin.Count{
		{Route: "ready", State: core.StatePending, N: limit + 5, Due: limit + 5, Estimated: true},
		{Route: "ready up to the limit", State: core.StatePending, N: limit, Due: limit},
		{Route: "timers", State: core.StatePending, N: limit + 1, Estimated: true, AtLeast: true},
		{Route: "timers up to the limit", State: core.StatePending, N: limit},
	}; !slices.Equal(counts, want) {
		t.Errorf("counts %+v, want %+v", counts, want)
	}
}
