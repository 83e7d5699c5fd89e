package rules

import "math"

// SampleSize is the most sequences of a [Sample].
const SampleSize = 10_000

// Sample counts records by sequences that lie all over a range, one in each of many strata. It needs no statistics, and
// moves with each record that is settled. Single sequences tell as much of records in long runs as of mixed ones. The
// place in a stratum follows the golden ratio, so that it keeps no step with the batches of producers.
type Sample struct {
	low, high, width int64
}

// NewSample returns the sample of the sequences above low, up to high.
func NewSample(low, high int64) Sample {
	return Sample{low, high, max((high-low+SampleSize-1)/SampleSize, 1)}
}

// Seqs returns the sequences to look at.
func (s Sample) Seqs() []int64 {
	seqs := []int64{}
	for k := int64(0); k < SampleSize && s.low+k*s.width < s.high; k++ {
		_, part := math.Modf(float64(k) * 0.6180339887)
		seqs = append(seqs, s.low+k*s.width+1+int64(part*float64(s.width)))
	}
	return seqs
}

// Total returns how many records there are: seen outside of the range, and hits among [Sample.Seqs]. With two
// deviations of more than 5 % the total is vague: then it is a least number, four deviations below the estimate.
func (s Sample) Total(seen, hits int64) (total int64, vague bool) {
	total = seen + hits*s.width
	if s.width == 1 || 2*math.Sqrt(float64(hits+1))*float64(s.width) <= float64(total)*0.05 {
		return total, false
	}
	few := float64(max(hits-2, 0)) // a run of records fills its first and its last stratum in part
	return seen + int64((few+8-4*math.Sqrt(few+4))*float64(s.width)), true
}

// Count returns how many records of a kind there are, or with vague a number that is less. seen were counted one by
// one: those outside of the range with apart, else some of all.
func (s Sample) Count(seen, hits int64, apart bool) (n int64, vague bool) {
	outside, least := int64(0), max(seen, hits)
	if apart {
		outside, least = seen, seen+hits
	}
	n, vague = s.Total(outside, hits)
	if n = max(n, least); vague {
		n = max(n-1, 0)
	}
	return n, vague
}
