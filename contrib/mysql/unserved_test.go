package waybillmysql_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
)

// DB-20: a membership that names the unserved routes costs a look into each gap between those that are served, for any
// number of waiting records.
func TestUnservedRoutes(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	msgs := []waybill.Message{
		waybill.RawMessage("t", "", nil, waybill.Routes("a")),
		waybill.RawMessage("t", "", nil, waybill.Routes("later"), waybill.DeliverAt(time.Now().Add(time.Hour))),
		waybill.RawMessage("t", "", nil, waybill.Routes("z")),
	}
	for i := range 2000 {
		msgs = append(msgs, waybill.RawMessage("t", "", nil, waybill.Key(strconv.Itoa(i))))
	}
	for part := range slices.Chunk(msgs, 500) {
		if err := stage(t.Context(), s, part); err != nil {
			t.Fatal(err)
		}
	}
	partitions := []core.PartitionState{{Partition: core.Partition{Route: waybill.DefaultRoute}}}
	for i := range 1200 { // more than one statement leaves out; each partition of a route counts once
		for range 2 {
			partitions = append(partitions, core.PartitionState{Partition: core.Partition{Route: fmt.Sprintf("route%04d", i)}})
		}
	}
	for _, c := range []struct {
		partitions []core.PartitionState
		want       []string
		reads      int64
	}{
		{nil, []string{"a", waybill.DefaultRoute, "z"}, 40},
		{partitions[:1], []string{"a", "z"}, 40},
		{partitions, []string{"a", "z"}, 1500},
	} {
		got, reads, err := s.Unserved(t.Context(), c.partitions)
		if err != nil || !slices.Equal(got, c.want) || reads > c.reads {
			t.Errorf("beside %d partitions: %q (%v), after %d reads; want %q, at most %d reads", len(c.partitions), got, err, reads, c.want, c.reads)
		}
	}
}
