package hlc

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// DefaultMaxDrift is the drift bound of a clock whose Options.MaxDrift is zero.
const DefaultMaxDrift = time.Minute

// ceilingMillis is the furthest that a wall clock, a remote stamp or a mark can
// move a clock, in the year 6394. Above it are 2^56 stamps to count on with: 22
// years at a hundred million stamps a second.
const ceilingMillis = MaxMillis - 1<<40

// ErrDrift is in the chain of every DriftError.
var ErrDrift = errors.New("stamp too far ahead of the wall clock")

// DriftError says that a stamp was refused because it is further ahead of the
// wall clock than the bound allows. The clock was not moved. errors.Is(err,
// ErrDrift) finds it.
type DriftError struct {
	// Op is the operation: "observe", "seed" or "new clock".
	Op string
	// Stamp is the refused stamp.
	Stamp Timestamp
	// Wall is the reading of the clock's own wall clock, in UTC. It is 1970 if the
	// reading was outside the years 1970 to 6394.
	Wall time.Time
	// Ahead is how far Stamp is ahead of Wall, in whole milliseconds, at most
	// the longest time.Duration (292 years).
	Ahead time.Duration
	// Max is the bound.
	Max time.Duration
}

// Error names the stamp, both times, the bound and what to do.
func (e *DriftError) Error() string {
	return fmt.Sprintf("waybill/hlc: %s: stamp %s (%s) is %s ahead of the wall clock (%s), more than the bound of %s: "+
		"check the clocks of both machines, or raise MaxDrift",
		e.Op, e.Stamp, e.Stamp.Time().Format(time.RFC3339), e.Ahead, e.Wall.Format(time.RFC3339), e.Max)
}

// Unwrap returns ErrDrift.
func (e *DriftError) Unwrap() error { return ErrDrift }

// Options configure a Clock. The zero value is a good choice.
type Options struct {
	// MaxDrift is how far a remote stamp, a mark or Floor can be ahead of the
	// wall clock before it is refused. It is rounded up to whole milliseconds.
	// Zero means DefaultMaxDrift. Negative means no bound: then one forged stamp
	// can put the clock thousands of years ahead for good.
	MaxDrift time.Duration

	// Wall reads the wall clock. Nil means time.Now. It must be safe for
	// concurrent use. It can jump in both directions; readings before 1970 or
	// after about 6394 are ignored.
	Wall func() time.Time

	// Floor is a persisted mark: every stamp of the new clock is above it. Zero
	// means none. NewClock treats it as Seed does.
	Floor Timestamp
}

// Validate reports all problems that show without reading the wall clock, joined,
// with field names.
func (o Options) Validate() error {
	if !o.Floor.Valid() {
		return fmt.Errorf("waybill/hlc: options: Floor: %w: negative", ErrInvalid)
	}
	return nil
}

// Clock gives out stamps. It is safe for concurrent use and free of locks. The
// zero Clock works with the default options. A Clock must not be copied after
// first use.
type Clock struct {
	last     atomic.Int64 // the highest stamp issued or observed
	rejected atomic.Uint64
	wall     func() time.Time // nil: time.Now
	maxDrift int64            // milliseconds; zero: the default; negative: no bound
}

// NewClock returns a clock whose stamps are above opts.Floor. It fails with
// the error of opts.Validate, with a *DriftError if Floor is further ahead of the
// wall clock than MaxDrift, and with ErrInvalid if Floor is beyond the year
// 6394.
func NewClock(opts Options) (*Clock, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	c := &Clock{wall: opts.Wall}
	switch d := opts.MaxDrift; {
	case d < 0:
		c.maxDrift = -1
	case d > 0:
		c.maxDrift = int64((d-1)/time.Millisecond) + 1
	}
	if err := c.seed("new clock", opts.Floor); err != nil {
		return nil, err
	}
	return c, nil
}

// Now returns a stamp above every stamp that this clock issued or observed
// before. It follows the wall clock, and counts on when that stands still or
// jumps back. More than 65,536 stamps in one millisecond carry into the
// milliseconds. Now does not block and does not allocate.
//
// The one end to this is MaxTimestamp, which a clock cannot come near by any
// input, only by counting on for decades; there Now stays.
func (c *Clock) Now() Timestamp {
	return c.advance(Timestamp(c.wallMillis() << counterBits))
}

// Observe merges the stamp of a received message and returns a stamp above it
// and above every stamp that this clock issued or observed before. Call it
// before anything that the message causes is stamped. The zero stamp is a message
// without one: Observe(0) is Now().
//
// It fails with a *DriftError (ErrDrift) if remote is above everything this
// clock has reached and further ahead of the wall clock than MaxDrift, and with
// ErrInvalid if remote is negative or beyond the year 6394. Then it returns the
// zero stamp, the clock has not moved, and Rejected has risen by one. The clock
// goes on as before; Now still works.
func (c *Clock) Observe(remote Timestamp) (Timestamp, error) {
	wall := c.wallMillis()
	// A stamp that the clock has passed cannot move it, wherever the wall clock is.
	if remote < 0 || int64(remote) > c.last.Load() {
		if err := c.judge("observe", remote, wall); err != nil {
			c.rejected.Add(1)
			return 0, err
		}
	}
	return c.advance(max(Timestamp(wall<<counterBits), remote+1)), nil
}

// Seed raises the clock to a persisted high-water mark: every later stamp is
// above mark. It never lowers the clock, so it can be called several times, with
// marks from several stores. The zero mark does nothing.
//
// It fails as Observe does, and leaves the clock unmoved, if mark is too far
// ahead of the wall clock: a bad restore must not send the clock far ahead. Until
// the cause is found the clock's stamps can be below those of an earlier run, so
// do not stage with it. A refused mark does not count in Rejected.
func (c *Clock) Seed(mark Timestamp) error {
	return c.seed("seed", mark)
}

// SeedCapped is Seed for a program that must go on with any mark. If the mark
// is too far ahead of the wall clock, it raises the clock as far as a mark can,
// to MaxDrift ahead of the wall clock, and returns the *DriftError, for a log.
// Any other mark that Seed refuses leaves the clock unmoved.
func (c *Clock) SeedCapped(mark Timestamp) error {
	err := c.Seed(mark)
	if e, ok := errors.AsType[*DriftError](err); ok {
		c.raise(Timestamp((e.Wall.UnixMilli() + e.Max.Milliseconds()) << counterBits))
	}
	return err
}

func (c *Clock) seed(op string, mark Timestamp) error {
	if mark < 0 || int64(mark) > c.last.Load() {
		if err := c.judge(op, mark, c.wallMillis()); err != nil {
			return err
		}
	}
	c.raise(mark)
	return nil
}

func (c *Clock) raise(mark Timestamp) {
	for {
		last := c.last.Load()
		if int64(mark) <= last || c.last.CompareAndSwap(last, int64(mark)) {
			return
		}
	}
}

// Last returns the highest stamp that the clock issued, observed or was seeded
// with; zero if there was none. Persist it, and Seed the next run with it. Last
// does not move the clock.
func (c *Clock) Last() Timestamp { return Timestamp(c.last.Load()) }

// Rejected returns how many remote stamps Observe has refused since the clock
// was made.
func (c *Clock) Rejected() uint64 { return c.rejected.Load() }

// Ahead returns how far the clock is ahead of its wall clock now, in whole
// milliseconds; zero if it is not. It is small in health. A large value means that this
// wall clock was ahead and came back, or that an accepted remote stamp or mark
// was. It is at most the longest time.Duration (292 years).
func (c *Clock) Ahead() time.Duration {
	return millis(max(0, c.Last().Millis()-c.wallMillis()))
}

// advance moves the clock to floor, or to one above the last stamp if that is higher.
// The addition carries from a full counter into the milliseconds.
func (c *Clock) advance(floor Timestamp) Timestamp {
	for {
		last := c.last.Load()
		if last == math.MaxInt64 {
			return MaxTimestamp
		}
		next := max(int64(floor), last+1)
		if c.last.CompareAndSwap(last, next) {
			return Timestamp(next)
		}
	}
}

// judge decides whether t can move the clock, given a reading of wallMillis.
func (c *Clock) judge(op string, t Timestamp, wall int64) error {
	if err := t.check(op); err != nil {
		return err
	}
	bound := c.maxDrift
	if bound == 0 {
		bound = DefaultMaxDrift.Milliseconds()
	}
	if ahead := t.Millis() - wall; bound >= 0 && ahead > bound {
		return &DriftError{Op: op, Stamp: t, Wall: time.UnixMilli(wall).UTC(), Ahead: millis(ahead), Max: millis(bound)}
	}
	if t.Millis() > ceilingMillis {
		return fmt.Errorf("waybill/hlc: %s: %w: %s is beyond the year 6394, a clock cannot be moved there", op, ErrInvalid, t)
	}
	return nil
}

// wallMillis reads the wall clock in milliseconds since 1970. A reading that a
// clock must not follow is 0, which moves nothing. Seconds are compared first
// because UnixMilli overflows for the times that are checked for here.
func (c *Clock) wallMillis() int64 {
	now := time.Now
	if c.wall != nil {
		now = c.wall
	}
	t := now()
	sec := t.Unix()
	if sec < 0 || sec >= ceilingMillis/1000 {
		return 0
	}
	return sec*1000 + int64(t.Nanosecond())/1e6
}

// millis converts milliseconds to a duration and stops at the longest one.
func millis(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}
