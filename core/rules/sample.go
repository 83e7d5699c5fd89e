package rules

import "math"

// SampleSize is the most sequences of a [Sample].
const SampleSize = 10_000

// Sample counts records by sequences that lie all over a range, one in each of many strata. It needs no statistics, and
// moves with each record that is settled. Single sequences tell as much of records in long runs as of mixed ones. The
// place in a stratum follows the golden ratio, so that it keeps no step with the batches of producers.
type Sample struct {
	low, span, size int64
}

// NewSample returns the sample of the sequences above low, up to high.
func NewSample(low, high int64) Sample {
	span := max(high-low, 0)
	return Sample{low, span, min(span, SampleSize)}
}

// Seqs returns the sequences to look at, in ascending order.
func (s Sample) Seqs() []int64 {
	seqs := make([]int64, s.size)
	for k := range s.size {
		from, to := s.stratum(k), s.stratum(k+1)
		_, part := math.Modf(float64(k) * 0.6180339887)
		seqs[k] = s.low + from + 1 + int64(part*float64(to-from))
	}
	return seqs
}

// stratum returns where the k-th stratum begins, without an overflow.
func (s Sample) stratum(k int64) int64 { return k*(s.span/s.size) + k*(s.span%s.size)/s.size }

// Total returns how many records there are: seen outside of the range, and hits among [Sample.Seqs]. With two
// deviations of more than 5 % the total is vague: then it is a least number, four deviations below the estimate.
func (s Sample) Total(seen, hits int64) (total int64, vague bool) {
	width := float64(s.span) / float64(max(s.size, 1))
	total = seen + int64(float64(hits)*width)
	if s.size == s.span || 2*math.Sqrt(float64(hits+1))*width <= float64(total)*0.05 {
		return total, false
	}
	few := float64(max(hits-2, 0)) // a run of records fills its first and its last stratum in part
	return seen + int64((few+8-4*math.Sqrt(few+4))*width), true
}

// Count returns how many records of a kind there are, or with vague a number that is less. seen were counted one by
// one: those outside of the range with apart, else some of all. beside are others that the answer is added to: it is
// vague if the sum is.
func (s Sample) Count(seen, hits, beside int64, apart bool) (n int64, vague bool) {
	outside, least := int64(0), max(seen, hits)
	if apart {
		outside, least = seen, seen+hits
	}
	n, vague = s.Total(beside+outside, hits)
	if n = max(n-beside, least); vague {
		n = max(n-1, 0)
	}
	return n, vague
}
