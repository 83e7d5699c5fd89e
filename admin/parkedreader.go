package admin

import (
	"context"
	"fmt"
	"math"

	"github.com/waybill-go/waybill"
)

// ParkedReader is the part of a [ParkedQueue] that reads, over a transport's walk of its parked messages.
type ParkedReader struct {
	// Adapter begins the texts of errors, as "waybill/nats" does.
	Adapter string
	// Walk calls fn with the parked messages of queue, oldest first, until fn returns 0. The caller looks for as
	// many more as want says, and then the result of fn.
	Walk func(ctx context.Context, op, queue string, want int, fn func(p *Parked) (want int)) error
}

// Count is ParkedQueue.CountParked.
func (r ParkedReader) Count(ctx context.Context, queue string) (map[waybill.Reason]int, error) {
	counts := map[waybill.Reason]int{}
	err := r.Walk(ctx, "count parked", queue, math.MaxInt, func(p *Parked) int {
		counts[p.Reason]++
		return math.MaxInt
	})
	if err != nil {
		return nil, err
	}
	return counts, nil
}

// Inspect is ParkedQueue.InspectParked.
func (r ParkedReader) Inspect(ctx context.Context, queue string, f ParkedFilter) (Parked, error) {
	found, err := r.find(ctx, "inspect parked", queue, &f, 1, true)
	switch {
	case err != nil:
		return Parked{}, err
	case len(found) == 0:
		return Parked{}, NoParked(r.Adapter+": inspect parked", queue)
	}
	return found[0], nil
}

// List is ParkedQueue.ListParked.
func (r ParkedReader) List(ctx context.Context, queue string, f ParkedFilter, limit int) ([]Parked, error) {
	return r.find(ctx, "list parked", queue, &f, limit, false)
}

func (r ParkedReader) find(ctx context.Context, op, queue string, f *ParkedFilter, limit int, body bool) (found []Parked, err error) {
	problems := f.Problems()
	if limit < 1 {
		problems = append(problems, fmt.Sprintf("limit: %d is less than 1", limit))
	}
	if err := waybill.Invalid(r.Adapter+": "+op, problems...); err != nil {
		return nil, err
	}
	err = r.Walk(ctx, op, queue, limit, func(p *Parked) int {
		if f.Matches(p) {
			if !body {
				p.Envelope.Body = nil
			}
			found = append(found, *p)
		}
		return limit - len(found)
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}
