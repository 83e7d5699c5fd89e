package waybill

import (
	"errors"
	"strings"
	"time"
)

// Sentinel errors, matched with errors.Is.
var (
	// ErrLeaseLost reports a settle of a delivery that the receiver no longer owns. Nothing was changed.
	ErrLeaseLost = errors.New("lease lost: the delivery is another receiver's, or it is settled")
	// ErrUnroutable reports a message that the broker accepted but could route to no queue.
	ErrUnroutable = errors.New("unroutable: no queue is bound for the topic")
	// ErrPredecessorFailed reports a message that must be sent again because an earlier message of its key failed
	// in the same call; see [core.KeyOrderPipelinedPrefix]. The broker can have it already. It costs no attempt.
	ErrPredecessorFailed = errors.New("an earlier message of its key failed")
	// ErrClosed reports the use of something that was closed.
	ErrClosed = errors.New("closed")
	// ErrUnsupported reports that an adapter does not support the request.
	ErrUnsupported = errors.New("not supported by this adapter")
	// ErrNotFound reports that there is no such record.
	ErrNotFound = errors.New("not found")
	// ErrInFlight reports that the record cannot be changed now, because a relay holds it or can have it out.
	ErrInFlight = errors.New("in flight: a relay holds the record")
	// ErrInvalid reports bad input or bad options: nothing was done. The text lists every problem.
	ErrInvalid = errors.New("invalid")
	// ErrRetryTx reports that the database ended a transaction in favour of another one: a deadlock, or a failed
	// serialisation. Roll back, and run the whole transaction again. Its class is outage.
	ErrRetryTx = errors.New("the transaction conflicts with another one; run it again")
	// ErrMisconfigured reports an object that is missing, has another shape, or is not permitted: a table that was
	// not migrated, a queue with other arguments. An operator must repair it. Its class is outage, because no
	// message is at fault. Engines end with it if they meet it at the start. Later they pause and probe until it is
	// fixed, as in any outage.
	ErrMisconfigured = errors.New("misconfigured")
)

// Class says how an error affects the message: whether a retry helps, and whether it costs an attempt.
type Class uint8

// The failure classes.
const (
	// ClassUnknown is an error of no known kind. Engines treat it as rejected.
	ClassUnknown Class = iota
	// ClassOutage means that the other side cannot be reached, is blocked, throttles, is misconfigured, or that the
	// connection was lost before the answer came. It costs no attempt; the engine pauses and probes.
	ClassOutage
	// ClassRejected means that the other side refused this message, this time. It costs an attempt.
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

// Error is an error with a failure class. Adapters wrap the errors of their driver in it; errors.As still reaches the
// driver's own error.
type Error struct {
	// Op is the operation that failed: "waybill/postgres: read".
	Op string
	// Class is the failure class.
	Class Class
	// Reason is stored when the message is given up because of this error; ReasonNone lets the engine choose.
	Reason Reason
	// TopicOnly narrows an outage to the message's topic, such as one full queue, instead of the whole route.
	TopicOnly bool
	// After is the delay after which a retry can help, if the other side or the handler named one; 0 = the policy
	// decides.
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

// ClassOf returns the failure class of err: the class of the outermost [*Error] in its chain. Without one it is
// ClassOutage if err matches [ErrMisconfigured], else ClassUnknown.
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

// Reject wraps a handler's error: the message is parked at once, without a retry.
func Reject(err error) error {
	return &Error{Class: ClassPermanent, Reason: ReasonRejected, Err: orDefault(err, "rejected by the handler")}
}

// RetryAfter wraps a handler's error: the message is tried again after d, at least a millisecond, and not after the
// policy's delay. The attempt counts as any other.
func RetryAfter(err error, d time.Duration) error {
	return &Error{Class: ClassRejected, After: max(d, time.Millisecond), Err: orDefault(err, "asked to retry")}
}

// Outage wraps a handler's error when a dependency of the handler is down: the message goes back at no cost and the
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

// Invalid joins problems into one error that matches ErrInvalid, or returns nil if there are none. Subject names the
// input that was checked: "waybill/relay: options".
func Invalid(subject string, problems ...string) error {
	if len(problems) == 0 {
		return nil
	}
	return &InvalidError{Subject: subject, Problems: problems}
}

// InvalidError lists all problems of an input, each with the field, the cause and the cure.
type InvalidError struct {
	Subject  string
	Problems []string
}

// Error returns all problems, separated by semicolons.
func (e *InvalidError) Error() string { return e.Subject + ": " + strings.Join(e.Problems, "; ") }

// Is reports a match with ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }
