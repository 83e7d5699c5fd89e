package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
)

// Parked is a message that a consumer gave up, as an operator sees it.
type Parked struct {
	// Envelope is the message. ListParked leaves out its Body.
	Envelope waybill.Envelope
	// Queue is the queue from which it was parked.
	Queue string
	// Reason and Error say why it was parked, Attempts counts its attempts, and At is when it was parked.
	Reason   waybill.Reason
	Error    string
	Attempts int
	At       time.Time
}

// ParkedFilter selects parked messages. Empty fields select everything; several values are alternatives.
type ParkedFilter struct {
	IDs     []string
	Topics  []string
	Reasons []waybill.Reason
}

// IsZero reports whether f selects everything.
func (f *ParkedFilter) IsZero() bool { return len(f.IDs)+len(f.Topics)+len(f.Reasons) == 0 }

// Matches reports whether p is selected.
func (f *ParkedFilter) Matches(p *Parked) bool {
	return (len(f.IDs) == 0 || slices.Contains(f.IDs, p.Envelope.ID)) &&
		(len(f.Topics) == 0 || slices.Contains(f.Topics, p.Envelope.Topic)) &&
		(len(f.Reasons) == 0 || slices.Contains(f.Reasons, p.Reason))
}

// ParkedRequest asks to replay or purge parked messages of a queue.
type ParkedRequest struct {
	Queue string
	// Filter selects. It must not be empty unless All.
	Filter ParkedFilter
	All    bool
	// Limit bounds the messages to change; 0 = no bound. Messages parked after the call began are left alone.
	Limit int
	// PerSecond bounds the rate; 0 = no bound.
	PerSecond float64
	// Progress, if not nil, is called on the caller's goroutine after each step. looked is the number of messages
	// looked at, and total the number of messages that were parked at the beginning.
	Progress func(looked, total int)
}

// Problems returns everything that is wrong with r, for adapters.
func (r *ParkedRequest) Problems() []string {
	var p []string
	if r.Queue == "" {
		p = append(p, "Queue: is empty; name the subscription's queue")
	}
	if r.Filter.IsZero() && !r.All {
		p = append(p, "Filter: is empty; name ids, topics or reasons, or set All if everything is meant")
	}
	if r.Limit < 0 {
		p = append(p, fmt.Sprintf("Limit: %d is negative; leave it 0 for no bound", r.Limit))
	}
	if !(r.PerSecond >= 0) || math.IsInf(r.PerSecond, 0) { // not a number is refused too
		p = append(p, fmt.Sprintf("PerSecond: %v is not a rate; leave it 0 for no bound", r.PerSecond))
	}
	return p
}

// Pace returns how long to wait before the next message, after done messages since started. It keeps to PerSecond.
func (r *ParkedRequest) Pace(done int, started, now time.Time) time.Duration {
	if r.PerSecond <= 0 {
		return 0
	}
	due := min(float64(done)/r.PerSecond*float64(time.Second), float64(math.MaxInt64/2))
	return max(time.Duration(due)-now.Sub(started), 0)
}

// ParkedQueue lists, replays and purges parked messages.
type ParkedQueue interface {
	// ParkedDepth returns how many messages are parked for queue.
	ParkedDepth(ctx context.Context, queue string) (int, error)
	// ListParked returns up to limit parked messages that match, oldest first where the broker keeps the order.
	// They stay parked.
	ListParked(ctx context.Context, queue string, f ParkedFilter, limit int) ([]Parked, error)
	// ReplayParked puts messages back into the queue from which they were parked, as first attempts, and returns
	// their number. It removes each only after the queue confirmed it. A crash in between makes a duplicate, which
	// the inbox absorbs. Expired messages stay parked. An empty filter without All is an [*waybill.InvalidError].
	ReplayParked(ctx context.Context, req ParkedRequest) (int, error)
	// PurgeParked deletes messages and returns their number. An empty filter without All is an
	// [*waybill.InvalidError].
	PurgeParked(ctx context.Context, req ParkedRequest) (int, error)
}
