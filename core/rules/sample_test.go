package rules_test

import (
	"math"
	"testing"

	"github.com/waybill-go/waybill/core/rules"
)

// A total is within 5 % of the number of records, or vague, for records of each density, and for two kinds that take
// turns in runs of each length. Windows stay in the range and never overlap.
func TestSample(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{1, 9, 500, 10_000, 10_001, 60_000, 1_000_000} {
		for _, step := range []int64{1, 2, 7, 64, 1000} { // runs of 100 records, one of so many
			const low = 777
			is := func(seq int64) bool { return seq/100%step == 0 }
			want, hits := int64(0), int64(0)
			for seq := int64(low + 1); seq <= low+size; seq++ {
				if is(seq) {
					want++
				}
			}
			s, end := rules.NewSample(low, low+size), int64(low)
			windows := s.Windows()
			for _, before := range windows {
				if before < end {
					t.Fatalf("%d of %d: a window begins at %d, the one before it ends at %d", step, size, before, end)
				}
				for end = before; end < before+rules.SampleWindow; {
					if end++; end <= low+size && is(end) {
						hits++
					}
				}
			}
			if len(windows) > rules.SampleWindows || end > low+size+max(size/rules.SampleWindows, rules.SampleWindow) {
				t.Errorf("%d of %d: %d windows, the last one ends at %d", step, size, len(windows), end)
			}
			total, vague := s.Total(0, hits)
			if off := math.Abs(float64(total - want)); size <= rules.SampleWindows*rules.SampleWindow && (off > 0 || vague) || !vague && off > 0.05*float64(want) {
				t.Errorf("one of %d in %d: %d (vague %t), want %d", step, size, total, vague, want)
			}
			if vague && (total > want || hits >= 400 && total < want/4) {
				t.Errorf("one of %d in %d: more than %d (%d hits), there are %d", step, size, total, hits, want)
			}
			if step <= 2 && vague {
				t.Errorf("one of %d in %d is vague", step, size)
			}
		}
	}
	for hits, before := int64(30), int64(0); hits < 1500; hits += 10 { // a least number moves with a drain
		total, vague := rules.NewSample(0, 10_000_000).Total(0, hits)
		if !vague || total <= before {
			t.Errorf("%d hits: %d (vague %t), with ten less %d", hits, total, vague, before)
		}
		before = total
	}
	if total, vague := rules.NewSample(0, 1<<40).Total(0, rules.SampleWindow); total != 0 || !vague {
		t.Errorf("one full window of many: %d (vague %t)", total, vague)
	}
	if total, vague := rules.NewSample(10, 1_000_010).Total(10_000, 0); total != 10_000 || vague {
		t.Errorf("nothing behind 10,000: %d, vague %t", total, vague)
	}
}
