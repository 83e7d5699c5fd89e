package rules

import "math"

// A [Sample] has so many windows at most, of so many sequences each.
const (
	SampleWindows = 1000
	SampleWindow  = 10
)

// Sample counts records by windows that lie all over a range of sequences, one in each of many strata. It needs no
// statistics, and moves with each record that is settled. The place of a window in its stratum follows the golden
// ratio, so that it keeps no step with the batches of producers.
type Sample struct {
	low, high, width int64
}

// NewSample returns the windows for the sequences above low, up to high.
func NewSample(low, high int64) Sample {
	return Sample{low, high, max((high-low+SampleWindows-1)/SampleWindows, SampleWindow)}
}

// Windows returns the number before the first sequence of each window. A window has [SampleWindow] of them.
func (s Sample) Windows() (before []int64) {
	for k := int64(0); k < SampleWindows && s.low+k*s.width < s.high; k++ {
		_, part := math.Modf(float64(k) * 0.6180339887)
		before = append(before, s.low+k*s.width+int64(part*float64(s.width-SampleWindow+1)))
	}
	return before
}

// Total returns how many records there are: seen outside of the range, and hits in the windows. With
// two deviations of more than 5 % the total is vague: then it is a least number, four deviations below the estimate. A
// deviation there is that of whole windows, as in a table where long runs of records take turns.
func (s Sample) Total(seen, hits int64) (total int64, vague bool) {
	scale := float64(s.width) / SampleWindow
	total = seen + int64(float64(hits)*scale)
	if s.width <= SampleWindow || 2*math.Sqrt(float64(hits+1))*scale <= float64(total)*0.05 {
		return total, false
	}
	windows := max(float64(hits)/SampleWindow-2, 0) // a run of records fills its first and its last stratum in part
	return seen + int64((windows+8-4*math.Sqrt(windows+4))*float64(s.width)), true
}
