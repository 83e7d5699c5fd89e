package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
)

// Parked is a message that a consumer gave up, as an operator sees it.
type Parked struct {
	// Envelope is the message. Only InspectParked shows its Body.
	Envelope waybill.Envelope
	// Position is its place in the order of the queue of parked messages at the time of the call; the oldest one
	// is 1. It names a message that has no id. It changes when older messages are replayed or purged.
	Position int
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
	Keys    []string
	Tenants []string
	// Error is a part of the error's text.
	Error string
	// Since and Until bound Parked.At, Until excluded.
	Since, Until time.Time
	// Positions are places as a list has shown them. Between the list and the next call another operator can have
	// replayed older messages: set Since and Until to Parked.At too, so that no other message is taken.
	Positions []int
}

// IsZero reports whether f selects everything.
func (f *ParkedFilter) IsZero() bool {
	return len(f.IDs)+len(f.Topics)+len(f.Reasons)+len(f.Keys)+len(f.Tenants)+len(f.Positions) == 0 &&
		f.Error == "" && f.Since.IsZero() && f.Until.IsZero()
}

// Matches reports whether p is selected.
func (f *ParkedFilter) Matches(p *Parked) bool {
	in := func(list []string, v string) bool { return len(list) == 0 || slices.Contains(list, v) }
	e := &p.Envelope
	return in(f.IDs, e.ID) && in(f.Topics, e.Topic) && in(f.Keys, e.Key) && in(f.Tenants, e.Tenant) &&
		(len(f.Reasons) == 0 || slices.Contains(f.Reasons, p.Reason)) &&
		(len(f.Positions) == 0 || slices.Contains(f.Positions, p.Position)) && strings.Contains(p.Error, f.Error) &&
		(f.Since.IsZero() || !p.At.Before(f.Since)) && (f.Until.IsZero() || p.At.Before(f.Until))
}

// Problems returns everything that is wrong with f, for adapters.
func (f *ParkedFilter) Problems() (p []string) {
	for _, n := range f.Positions {
		if n < 1 {
			p = append(p, fmt.Sprintf("Filter.Positions: %d is less than 1, the position of the oldest message", n))
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		p = append(p, fmt.Sprintf("Filter.Until: %s is not after Since, %s", f.Until.Format(time.RFC3339), f.Since.Format(time.RFC3339)))
	}
	return p
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
	// Edit, if not nil, returns the body with which a message is replayed, such as one that was repaired. It gets
	// the message with its body, which it must not change. If it returns an error, that message stays parked, and
	// the call goes on. It is called on the caller's goroutine. A purge refuses it.
	Edit func(p Parked) (body []byte, err error)
	// Result, if not nil, is called on the caller's goroutine for each message that the call changed, or tried to
	// change: with nil after it was replayed or purged, else with the error. The message comes without its body.
	Result func(p Parked, err error)
}

// Tell calls Result, if there is one.
func (r *ParkedRequest) Tell(p *Parked, err error) {
	if r.Result != nil {
		shown := *p
		shown.Envelope.Body = nil
		r.Result(shown, err)
	}
}

// Problems returns everything that is wrong with r, for adapters.
func (r *ParkedRequest) Problems() []string {
	var p []string
	if r.Queue == "" {
		p = append(p, "Queue: is empty; name the subscription's queue")
	}
	if r.Filter.IsZero() && !r.All {
		p = append(p, "Filter: is empty; name ids, topics, reasons, keys, tenants or times, or set All if everything is meant")
	}
	p = append(p, r.Filter.Problems()...)
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
	// CountParked returns how many messages are parked for each reason.
	CountParked(ctx context.Context, queue string) (map[waybill.Reason]int, error)
	// InspectParked returns the oldest parked message that matches, body included. It stays parked.
	// waybill.ErrNotFound if there is none.
	InspectParked(ctx context.Context, queue string, f ParkedFilter) (Parked, error)
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

// CheckPurgeParked returns an [*waybill.InvalidError] that lists every problem of r in a purge.
func CheckPurgeParked(op string, r *ParkedRequest) error {
	p := r.Problems()
	if r.Edit != nil {
		p = append(p, "Edit: is set, but a purge deletes: leave it nil")
	}
	return waybill.Invalid(op, p...)
}

// NoParked explains that no parked message of queue matches: an error that matches waybill.ErrNotFound.
func NoParked(op, queue string) error {
	return &waybill.Error{Op: op, Class: waybill.ClassRejected, Err: fmt.Errorf(
		"queue %q has no parked message that the filter selects: list them again (%w)", queue, waybill.ErrNotFound)}
}
