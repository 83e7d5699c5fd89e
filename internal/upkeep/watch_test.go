package upkeep_test

import (
	"fmt"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/upkeep"
)

// OP-05: each change of members and partitions is told once.
func TestWatch(t *testing.T) {
	t.Parallel()
	var w upkeep.Watch
	a, b := core.Member{Session: 1, Name: "a"}, core.Member{Session: 2, Name: "b"}
	for _, step := range []struct {
		members    []core.Member
		partitions []core.Partition
		want       string
	}{
		{[]core.Member{a}, []core.Partition{{From: 0, To: 8}, {From: 8, To: 16}}, "[a] [] [0-7 8-15] []"},
		{[]core.Member{a, b}, []core.Partition{{From: 0, To: 8}}, "[b] [] [] [8-15]"},
		{[]core.Member{a, b}, []core.Partition{{From: 0, To: 8}}, "[] [] [] []"},
		{[]core.Member{b}, []core.Partition{{From: 8, To: 16}}, "[] [a] [8-15] [0-7]"},
		{nil, nil, "[] [b] [] [8-15]"},
	} {
		met, gone := w.Members(step.members)
		taken, given := w.Partitions("r", step.partitions)
		if got := fmt.Sprint(met, gone, taken, given); got != step.want {
			t.Errorf("%+v: %s, want %s", step, got, step.want)
		}
	}
}
