// Package parked is the part of an [admin.ParkedQueue] that all transports share. A transport brings a walk over the
// parked messages of a queue. The filter, the edit, the limit, the rate, the progress and the results are here.
//
// # Guarantees
//
// A message is passed to Replay or Remove at most once in a call, and only if the request selects it. Expired messages
// are not replayed. The caller hears of each message that was changed, and of each error. The limit bounds the messages
// that were changed. A call ends with the first error that the walk returns, says how far it came, and closes the walk.
//
// # Concurrency
//
// The methods of Walks are safe for concurrent use if Open is. A walk is used by one goroutine at a time, on which the
// functions of the request run, too.
//
// # Ownership
//
// The walk owns what it returns, until it is closed. Results have the envelope, without its body.
//
// # Limits
//
// A step has as many messages, with their bodies, in memory as Walks.Batch says.
package parked

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/content"
	"github.com/waybill-go/waybill/internal/sleep"
)

// progressEvery is how many messages that are left alone make a step for Progress.
const progressEvery = 64

// Item is a message on a [Walk].
type Item struct {
	admin.Parked
	// Raw is the walk's own, such as the broker's message.
	Raw any
	// Fixed, if not nil, is why the message cannot be replayed.
	Fixed error
	// Edited is set if Envelope has another body than the parked message. Added has the headers that it has more.
	Edited bool
	Added  map[string]string
	// Changed and Err are what Replay or Remove made of it. With both it may be parked still. With none of them
	// another call was faster.
	Changed bool
	Err     error
}

// Walk goes over the messages that are parked for a queue when it begins, oldest first. Each call is made by
// one goroutine at a time.
type Walk interface {
	// Total returns how many messages there were at the beginning; 0 if that is not known.
	Total(ctx context.Context) (int, error)
	// Next returns the next message, or nil after the last one. The caller looks for as many as want at least.
	Next(ctx context.Context, want int) (*Item, error)
	// Replay puts messages back into their queue, as first attempts, and then removes each. It sets Changed and Err
	// of each. An error ends the call of the operator.
	Replay(ctx context.Context, items []*Item) error
	// Remove deletes messages, as Replay replays them.
	Remove(ctx context.Context, items []*Item) error
	// Close ends the walk. Messages that were not removed stay parked.
	Close(ctx context.Context)
}

// Loader is a [Walk] whose messages come without their bodies.
type Loader interface {
	// Load adds what is missing. If the message is gone, the error matches waybill.ErrNotFound.
	Load(ctx context.Context, item *Item) error
}

// Each passes one after the other to do, which reports whether it changed the message, and notes what it answers.
// The first error ends it. It is for walks that change their messages one by one.
func Each(items []*Item, do func(m *Item) (changed bool, err error)) error {
	for _, m := range items {
		if m.Changed, m.Err = do(m); m.Err != nil {
			return m.Err
		}
	}
	return nil
}

// The operator's calls that change messages, for Walks.Open.
const (
	OpReplay = "replay parked"
	OpPurge  = "purge parked"
)

// Walks is an [admin.ParkedQueue] over a transport's walk of its parked messages. A transport embeds it as that.
type Walks struct {
	// Adapter begins the texts of errors, as "waybill/nats" does.
	Adapter string
	// Open begins a walk. op is the operator's call, for the texts of errors.
	Open func(ctx context.Context, op, queue string) (Walk, error)
	// Batch bounds the messages that are replayed or removed at a time; 0 = one after the other.
	Batch int
	// MaxListed bounds the messages at which a count or a list looks; 0 = no bound.
	MaxListed int
}

// ParkedDepth implements [admin.ParkedQueue].
func (s Walks) ParkedDepth(ctx context.Context, queue string) (int, error) {
	w, err := s.Open(ctx, "parked depth", queue)
	if err != nil {
		return 0, err
	}
	defer w.Close(ctx)
	return w.Total(ctx)
}

// CountParked implements [admin.ParkedQueue].
func (s Walks) CountParked(ctx context.Context, queue string) (map[waybill.Reason]int, error) {
	counts := map[waybill.Reason]int{}
	err := s.look(ctx, "count parked", queue, math.MaxInt, func(_ Walk, m *Item) (int, error) {
		counts[m.Reason]++
		return math.MaxInt, nil
	})
	if err != nil {
		return nil, err
	}
	return counts, nil
}

// InspectParked implements [admin.ParkedQueue].
func (s Walks) InspectParked(ctx context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	found, err := s.find(ctx, "inspect parked", queue, &f, 1, true)
	switch {
	case err != nil:
		return admin.Parked{}, err
	case len(found) == 0:
		return admin.Parked{}, admin.NoParked(s.Adapter+": inspect parked", queue)
	}
	return found[0], nil
}

// ListParked implements [admin.ParkedQueue].
func (s Walks) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	return s.find(ctx, "list parked", queue, &f, limit, false)
}

func (s Walks) find(ctx context.Context, op, queue string, f *admin.ParkedFilter, limit int, body bool) (found []admin.Parked, err error) {
	problems := f.Problems()
	if limit < 1 {
		problems = append(problems, fmt.Sprintf("limit: %d is less than 1", limit))
	}
	if err := waybill.Invalid(s.Adapter+": "+op, problems...); err != nil {
		return nil, err
	}
	err = s.look(ctx, op, queue, limit, func(w Walk, m *Item) (int, error) {
		if f.Matches(&m.Parked) {
			if !body {
				m.Envelope.Body = nil
			} else if err := load(ctx, w, m); err != nil {
				return 0, err
			}
			found = append(found, m.Parked)
		}
		return limit - len(found), nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// look calls fn with the messages, until it wants no more of them.
func (s Walks) look(ctx context.Context, op, queue string, want int, fn func(Walk, *Item) (want int, err error)) error {
	w, err := s.Open(ctx, op, queue)
	if err != nil {
		return err
	}
	defer w.Close(ctx)
	for looked := 0; want > 0 && (s.MaxListed == 0 || looked < s.MaxListed); looked++ {
		m, err := w.Next(ctx, want)
		if err != nil || m == nil {
			return err
		}
		if want, err = fn(w, m); err != nil {
			return err
		}
	}
	return nil
}

func load(ctx context.Context, w Walk, m *Item) error {
	if l, ok := w.(Loader); ok {
		return l.Load(ctx, m)
	}
	return nil
}

// ReplayParked implements [admin.ParkedQueue].
func (s Walks) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	if err := waybill.Invalid(s.Adapter+": "+OpReplay, req.Problems()...); err != nil {
		return 0, err
	}
	return s.change(ctx, OpReplay, &req, true)
}

// PurgeParked implements [admin.ParkedQueue].
func (s Walks) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	if err := admin.CheckPurgeParked(s.Adapter+": "+OpPurge, &req); err != nil {
		return 0, err
	}
	return s.change(ctx, OpPurge, &req, false)
}

func (s Walks) change(ctx context.Context, op string, req *admin.ParkedRequest, replay bool) (int, error) {
	w, err := s.Open(ctx, op, req.Queue)
	if err != nil {
		return 0, err
	}
	defer w.Close(ctx)
	c := change{req: req, walk: w, op: s.Adapter + ": " + op, size: max(1, s.Batch), replay: replay, started: time.Now()}
	if req.PerSecond > 0 { // a step takes a tenth of a second
		c.size = max(1, min(c.size, int(req.PerSecond/10)))
	}
	if req.Progress != nil {
		if c.total, err = w.Total(ctx); err != nil {
			return 0, err
		}
	}
	err = c.run(ctx)
	return c.done, err
}

// change is a replay or a purge.
type change struct {
	req     *admin.ParkedRequest
	walk    Walk
	op      string
	replay  bool
	size    int // bounds a step
	started time.Time
	total   int // at the beginning
	looked  int
	tried   int
	done    int
}

func (c *change) run(ctx context.Context) error {
	for more := true; more && c.left() > 0; {
		size := min(c.size, c.left())
		batch, err := c.pick(ctx, size)
		if err != nil {
			return err
		}
		if more = len(batch) == size; len(batch) > 0 {
			if err := c.apply(ctx, batch); err != nil {
				return err
			}
		}
		c.progress()
	}
	return nil
}

// left is how many messages may be changed.
func (c *change) left() int {
	if c.req.Limit == 0 {
		return math.MaxInt
	}
	return c.req.Limit - c.done
}

func (c *change) progress() {
	if c.req.Progress != nil {
		c.req.Progress(c.looked, max(c.looked, c.total))
	}
}

// pick returns the next size messages that are to be changed; fewer at the end.
func (c *change) pick(ctx context.Context, size int) (batch []*Item, err error) {
	for len(batch) < size {
		if ctx.Err() != nil {
			return nil, c.cancelled(ctx)
		}
		m, err := c.walk.Next(ctx, c.left()-len(batch))
		if err != nil || m == nil {
			return batch, err
		}
		c.looked++
		switch picked, err := c.picks(ctx, m); {
		case err != nil:
			return nil, err
		case picked:
			batch = append(batch, m)
		case len(batch) == 0 && c.looked%progressEvery == 0:
			c.progress()
		}
	}
	return batch, nil
}

// picks reports whether a message is to be changed, and edits it.
func (c *change) picks(ctx context.Context, m *Item) (bool, error) {
	switch {
	case !c.req.Filter.Matches(&m.Parked):
		return false, nil
	case !c.replay:
		return true, nil
	case m.Reason == waybill.ReasonExpired || m.Envelope.Expired(time.Now()):
		return false, nil
	case m.Fixed != nil:
		return c.refuse(m, m.Fixed), nil //nolint:nilerr // the caller hears of it, and the call goes on
	case c.req.Edit == nil:
		return true, nil
	}
	if err := load(ctx, c.walk, m); err != nil {
		if errors.Is(err, waybill.ErrNotFound) { // another call was faster
			err = nil
		}
		return false, err
	}
	body, refused := c.req.Edit(m.Parked)
	if refused != nil {
		return c.refuse(m, refused), nil
	}
	if mark := content.Mark(&m.Envelope); mark != "" {
		m.Added = map[string]string{content.Header: mark}
	}
	content.Repair(&m.Envelope, body)
	m.Edited = true
	return true, nil
}

// refuse says why a message stays, and returns false.
func (c *change) refuse(m *Item, why error) bool {
	c.req.Tell(&m.Parked, why)
	return false
}

// apply replays or removes some messages, at the rate that was asked for.
func (c *change) apply(ctx context.Context, batch []*Item) error {
	if err := c.wait(ctx, c.req.Pace(c.tried, c.started, time.Now())); err != nil {
		return err
	}
	c.tried += len(batch)
	do := c.walk.Remove
	if c.replay {
		do = c.walk.Replay
	}
	err := do(ctx, batch)
	for _, m := range batch {
		if m.Changed {
			c.done++
		}
		if m.Changed || m.Err != nil {
			c.req.Tell(&m.Parked, m.Err)
		}
	}
	return err
}

func (c *change) wait(ctx context.Context, d time.Duration) error {
	if d <= 0 || sleep.For(ctx, d) == nil {
		return nil
	}
	return c.cancelled(ctx)
}

func (c *change) cancelled(ctx context.Context) error {
	return &waybill.Error{Op: c.op, Class: waybill.ClassOutage, Err: context.Cause(ctx)}
}
