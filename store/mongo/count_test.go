package mongo

// An operator must know whether a count is exact, an estimate, or the least that there is.

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// DB-11 OP-20: up to 10,000 records of a kind a count is exact. Above it is an estimate, also where the records of two
// routes take turns, or a least number if records lie far apart.
func TestCountsSayHowExactTheyAre(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	if s.countLimit != 10_000 {
		t.Errorf("counts are exact up to %d", s.countLimit)
	}
	const limit = 10 // so many would take long
	s.countLimit = limit
	for range limit + 5 {
		in(t, s, func(ctx context.Context, tx *driver.Session) error {
			_, err := s.Stage(ctx, tx, waybill.RawMessage("t.x", "", nil, waybill.Routes("one", "another")))
			return err
		})
	}
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
		{Route: "another", State: core.StatePending, N: limit + 5, Due: limit + 5, Estimated: true},
		{Route: "one", State: core.StatePending, N: limit + 5, Due: limit + 5, Estimated: true},
		{Route: "ready", State: core.StatePending, N: limit + 5, Due: limit + 5, Estimated: true},
		{Route: "ready up to the limit", State: core.StatePending, N: limit, Due: limit},
		{Route: "timers", State: core.StatePending, N: limit + 5, Estimated: true},
		{Route: "timers up to the limit", State: core.StatePending, N: limit},
	}; !slices.Equal(counts, want) {
		t.Errorf("counts %+v, want %+v", counts, want)
	}
	if _, err := s.outbox.UpdateOne(t.Context(), bson.M{"route": "ready"}, bson.M{"$inc": bson.M{"seq": int64(1 << 40)}}); err != nil {
		t.Fatal(err)
	}
	if counts, err = s.Counts(t.Context()); err != nil {
		t.Fatal(err)
	}
	counts[2].Oldest = 0
	if want := (admin.Count{Route: "ready", State: core.StatePending, N: limit, Due: limit, Estimated: true, AtLeast: true}); counts[2] != want {
		t.Errorf("far apart: %+v, want %+v", counts[2], want)
	}
}

// The first records of a phase are not like the others: the held ones lie at the front, and reasons come in turns.
//
// OP-20
func TestCountsOfUnlikeRecords(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	s.countLimit = 10
	for route, n := range map[string]int{"ready": 40, "retries": 40, "gone": 40, "few": 10} {
		in(t, s, func(ctx context.Context, tx *driver.Session) error {
			_, err := s.Stage(ctx, tx, slices.Repeat([]waybill.Message{waybill.RawMessage("t.x", "", nil, waybill.Routes(route))}, n)...)
			return err
		})
	}
	update := func(route string, to bson.M, last int64) {
		t.Helper()
		first, err := s.outbox.Find(t.Context(), bson.M{"route": route}, options.Find().SetSort(bson.M{"seq": 1}).SetLimit(last))
		if err != nil {
			t.Fatal(err)
		}
		var records []record
		if err := first.All(t.Context(), &records); err != nil {
			t.Fatal(err)
		}
		for i := range records {
			if _, err := s.outbox.UpdateOne(t.Context(), bson.M{"seq": records[i].Seq}, bson.M{"$set": to}); err != nil {
				t.Fatal(err)
			}
		}
	}
	update("ready", bson.M{"hold": int64(7)}, 3)
	update("few", bson.M{"hold": int64(7)}, 2)
	update("retries", bson.M{"phase": phaseRetry, "due": time.Now().Add(-time.Hour)}, 40)
	update("retries", bson.M{"hold": int64(7)}, 3)
	update("gone", bson.M{"phase": phaseAbandoned, "reason": "attempts"}, 40)
	// more reasons than records that are seen before the sample, in whichever order they come
	counted := []sharedtest.Counted{{Route: "gone", State: core.StateAbandoned, Reason: "attempts", N: 10, How: "estimated"}}
	for i := 15; i > 0; i-- {
		reason := fmt.Sprintf("r%d", i)
		update("gone", bson.M{"reason": reason}, int64(2*i))
		counted = append(counted, sharedtest.Counted{Route: "gone", State: core.StateAbandoned, Reason: waybill.Reason(reason), N: 2, How: "estimated"})
	}
	sharedtest.Counts(t, s, append(counted,
		sharedtest.Counted{Route: "ready", State: core.StateProcessing, N: 3, How: "exact"},
		sharedtest.Counted{Route: "ready", State: core.StatePending, N: 37, Due: 37, How: "estimated"},
		sharedtest.Counted{Route: "retries", State: core.StateProcessing, N: 3, How: "exact"},
		sharedtest.Counted{Route: "retries", State: core.StateFailed, N: 37, Due: 37, How: "estimated"},
		sharedtest.Counted{Route: "few", State: core.StateProcessing, N: 2, How: "exact"},
		sharedtest.Counted{Route: "few", State: core.StatePending, N: 8, Due: 8, How: "exact"},
	)...)
}
