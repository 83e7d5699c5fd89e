package waybill

import (
	"errors"
	"strings"
	"time"
)

// Sentinel errors, matched with errors.Is.
var (
	// ErrLeaseLost reports a settle of a delivery that is no longer the receiver's: nothing was changed.
	ErrLeaseLost = errors.New("lease lost: the delivery is another receiver's, or it is settled")
	// ErrUnroutable reports a message that the broker took but had no queue for.
	ErrUnroutable = errors.New("unroutable: no queue is bound for the topic")
	// ErrBehind reports a message that is to be sent again, whether the broker has it or not, because an earlier one of
	// its key failed in the same call; see [core.KeyOrderPipelinedPrefix]. It costs no attempt.
	ErrBehind = errors.New("an earlier message of its key failed")
	// ErrClosed reports the use of something that was closed.
	ErrClosed = errors.New("closed")
	// ErrUnsupported reports that an adapter cannot do what was asked.
	ErrUnsupported = errors.New("not supported by this adapter")
	// ErrNotFound reports that there is no such record.
	ErrNotFound = errors.New("not found")
	// ErrInFlight reports that a relay holds the record, or may have it out, so that it cannot be changed now.
	ErrInFlight = errors.New("in flight: a relay holds the record")
	// ErrInvalid reports bad input or bad options: nothing was done. The text lists every problem.
	ErrInvalid = errors.New("invalid")
	// ErrRetryTx reports that the database ended a transaction for the sake of another one: a deadlock, a failed
	// serialisation. Roll back, and run all of it again. Its class is outage.
	ErrRetryTx = errors.New("the transaction conflicts with another one; run it again")
	// ErrMisconfigured reports an object that is missing, has another shape, or is not permitted: a table that was not
	// migrated, a queue with other arguments. Somebody must fix it. Its class is outage, since no message is at fault.
	// Engines end with it on first contact. Later they pause and probe until it is fixed, as in any outage.
	ErrMisconfigured = errors.New("misconfigured")
)

// Class is what an error means for the message it happened to.
type Class uint8

// The failure classes.
const (
	// ClassUnknown is an error of no known kind. Engines treat it as rejected.
	ClassUnknown Class = iota
	// ClassOutage means that the other side cannot be reached, is blocked, throttles, is misconfigured, or lost the
	// connection with the answer outstanding. It costs no attempt; the engine pauses and probes.
	ClassOutage
	// ClassRejected means that the other side said no to this message, this time. It costs an attempt.
	ClassRejected
	// ClassPermanent means that no retry can help. The message is abandoned or parked at once.
	ClassPermanent
)

// String returns the class's name as logged and as metric label.
func (c Class) String() string {
	switch c {
	case ClassOutage:
		return "outage"
	case ClassRejected:
		return "rejected"
	case ClassPermanent:
		return "permanent"
	case ClassUnknown:
		return "unknown"
	}
	return "unknown"
}

// Error is an error with a failure class. Adapters wrap what their driver returned in it; errors.As still reaches the
// driver's own error.
type Error struct {
	// Op is where it happened: "waybill/postgres: read".
	Op string
	// Class is what it means.
	Class Class
	// Reason is stored when the message is given up because of this error; ReasonNone lets the engine choose.
	Reason Reason
	// TopicOnly narrows an outage to the message's topic, such as one full queue, instead of the whole route.
	TopicOnly bool
	// After is when a retry may help, if the other side or the handler said so; 0 = the policy decides.
	After time.Duration
	// Err is the cause.
	Err error
}

// Error returns "op: cause".
func (e *Error) Error() string {
	cause := e.Class.String()
	if e.Err != nil {
		cause = e.Err.Error()
	}
	if e.Op == "" {
		return cause
	}
	return e.Op + ": " + cause
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the failure class of err: that of the outermost [*Error] in its chain; without one it is ClassOutage
// if err matches [ErrMisconfigured], else ClassUnknown.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	if errors.Is(err, ErrMisconfigured) {
		return ClassOutage
	}
	return ClassUnknown
}

// ReasonOf returns the reason of the outermost [*Error] in err's chain, else ReasonNone.
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ReasonNone
}

// Reject wraps a handler's error so that the message is parked at once instead of retried.
func Reject(err error) error {
	return &Error{Class: ClassPermanent, Reason: ReasonRejected, Err: orDefault(err, "rejected by the handler")}
}

// RetryAfter wraps a handler's error so that the message is tried again after d, at least a millisecond, instead of
// after the policy's delay. The attempt counts as any other.
func RetryAfter(err error, d time.Duration) error {
	return &Error{Class: ClassRejected, After: max(d, time.Millisecond), Err: orDefault(err, "asked to retry")}
}

// Outage wraps a handler's error to say that something it depends on is down: the message goes back at no cost and the
// subscription pauses.
func Outage(err error) error {
	return &Error{Class: ClassOutage, Err: orDefault(err, "a dependency is down")}
}

func orDefault(err error, text string) error {
	if err == nil {
		return errors.New(text)
	}
	return err
}

// Invalid joins problems into one error that matches ErrInvalid, or returns nil if there are none. Subject names what
// was checked: "waybill/relay: options".
func Invalid(subject string, problems ...string) error {
	if len(problems) == 0 {
		return nil
	}
	return &InvalidError{Subject: subject, Problems: problems}
}

// InvalidError lists everything that is wrong with an input, each problem with the field, the cause and the cure.
type InvalidError struct {
	Subject  string
	Problems []string
}

// Error returns all problems, separated by semicolons.
func (e *InvalidError) Error() string { return e.Subject + ": " + strings.Join(e.Problems, "; ") }

// Is reports a match with ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }
