package rules_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/waybill-go/waybill/core/rules"
)

// A total is within 5 % of the number of records, or vague, for records of each density, for two kinds that take
// turns in runs of each length, and for runs of random lengths. The sequences stay in the range and ascend.
//
// OP-20
func TestSample(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{1, 9, 500, 10_000, 10_001, 60_000, 1_000_000} {
		for _, step := range []int64{1, 2, 7, 64, 1000} { // runs of 100 records, one of so many
			check(t, size, func(seq int64) bool { return seq/100%step == 0 }, step <= 2)
		}
		for _, most := range []int64{20, 200, 2000} {
			rng := rand.New(rand.NewPCG(uint64(size), uint64(most)))
			ours, left := false, int64(0)
			var runs []bool
			for range size {
				if left--; left < 0 {
					ours, left = !ours, rng.Int64N(most)
				}
				runs = append(runs, ours)
			}
			check(t, size, func(seq int64) bool { return seq > first && runs[seq-first-1] }, false)
		}
	}
	for hits, before := int64(30), int64(0); hits < 1500; hits += 10 { // a least number moves with a drain
		total, vague := rules.NewSample(0, 10_000_000).Total(0, hits)
		if !vague || total <= before {
			t.Errorf("%d hits: %d (vague %t), with ten less %d", hits, total, vague, before)
		}
		before = total
	}
	if total, vague := rules.NewSample(0, 1<<40).Total(0, 1); total != 0 || !vague {
		t.Errorf("one hit of many: %d (vague %t)", total, vague)
	}
	if total, vague := rules.NewSample(10, 1_000_010).Total(10_000, 0); total != 10_000 || vague {
		t.Errorf("nothing behind 10,000: %d, vague %t", total, vague)
	}
}

// The sequences of the widest range there is ascend in it: nothing overflows.
func TestWidestSample(t *testing.T) {
	t.Parallel()
	last := int64(0)
	for _, seq := range rules.NewSample(0, math.MaxInt64).Seqs() {
		if seq <= last {
			t.Fatalf("%d follows %d", seq, last)
		}
		last = seq
	}
}

// first is the sequence before those of a check.
const first = 777

func check(t *testing.T, size int64, is func(seq int64) bool, exact bool) {
	t.Helper()
	want, hits := int64(0), int64(0)
	for seq := int64(first + 1); seq <= first+size; seq++ {
		if is(seq) {
			want++
		}
	}
	s, last := rules.NewSample(first, first+size), int64(first)
	seqs := s.Seqs()
	for _, seq := range seqs {
		if seq <= last {
			t.Fatalf("of %d: %d after %d", size, seq, last)
		}
		if last = seq; seq <= first+size && is(seq) {
			hits++
		}
	}
	if len(seqs) != int(min(size, rules.SampleSize)) || last > first+size {
		t.Errorf("of %d: %d sequences, the last one is %d", size, len(seqs), last)
	}
	total, vague := s.Total(0, hits)
	if off := math.Abs(float64(total - want)); size <= rules.SampleSize && (off > 0 || vague) || !vague && off > 0.05*float64(want) {
		t.Errorf("%d of %d: %d (vague %t)", want, size, total, vague)
	}
	if vague && (total > want || hits >= 40 && total < want/4) {
		t.Errorf("%d of %d: more than %d (%d hits)", want, size, total, hits)
	}
	if exact && vague {
		t.Errorf("%d of %d is vague", want, size)
	}
}

// Records that were counted one by one are a least number: beside the sample they add to the hits, among all they do
// not.
func TestSampleCount(t *testing.T) {
	t.Parallel()
	wide, whole := rules.NewSample(0, 10_000_000), rules.NewSample(0, 5000)
	for _, c := range []struct {
		s                  rules.Sample
		seen, hits, beside int64
		apart              bool
		n                  int64
		vague              bool
	}{
		{whole, 3, 7, 0, true, 10, false},
		{whole, 7, 7, 0, false, 7, false},
		{wide, 1_000_000, 0, 0, true, 1_000_000, false},
		{wide, 3, 0, 0, true, 2, true},
		{wide, 3, 1, 0, true, 3, true},
		{wide, 9, 3, 0, false, 54, true},
		{wide, 0, 0, 0, false, 0, true},
		{wide, 0, 0, 1_000_000, false, 0, false},
		{wide, 9, 3, 1_000_000, false, 3000, false},
		{wide, 9, 5000, 0, false, 5_000_000, false},
	} {
		if n, vague := c.s.Count(c.seen, c.hits, c.beside, c.apart); n != c.n || vague != c.vague {
			t.Errorf("%+v: %d (vague %t)", c, n, vague)
		}
	}
}
