package mongo

// An operator must know whether a count is exact, an estimate, or the least that there is.

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// DB-11: up to 10,000 records of a kind a count is exact. Above, that of ready ones is an estimate, and that of others the
// least that there is.
func TestCountsSayHowExactTheyAre(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	for _, c := range []struct {
		route string
		n     int
		delay time.Duration
	}{{"ready", countLimit + 1, 0}, {"timers", countLimit + 100, time.Hour}, {"timers up to the limit", countLimit, time.Hour}} {
		in(t, s, func(ctx context.Context, tx *driver.Session) error {
			_, err := s.Stage(ctx, tx, waybill.RawMessage("t.x", "", nil, waybill.Routes(c.route), waybill.Delay(c.delay)))
			return err
		})
		var r record
		if err := s.outbox.FindOne(t.Context(), bson.M{"route": c.route}).Decode(&r); err != nil {
			t.Fatal(err)
		}
		others := make([]any, c.n-1)
		for i := range others {
			r.Seq++
			r.ID.ID = strconv.Itoa(i)
			others[i] = r
		}
		if _, err := s.outbox.InsertMany(t.Context(), others); err != nil {
			t.Fatal(err)
		}
	}
	counts, err := s.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range counts {
		counts[i].Oldest = 0
	}
	if want := []admin.Count{
		{Route: "ready", State: core.StatePending, N: countLimit + 1, Estimated: true},
		{Route: "timers", State: core.StatePending, N: countLimit + 1, Estimated: true, AtLeast: true},
		{Route: "timers up to the limit", State: core.StatePending, N: countLimit},
	}; !slices.Equal(counts, want) {
		t.Errorf("counts %+v, want %+v", counts, want)
	}
}
