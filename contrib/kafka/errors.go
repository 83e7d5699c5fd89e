package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
)

func fail(op string, class waybill.Class, reason waybill.Reason, err error) *waybill.Error {
	return &waybill.Error{Op: "waybill/kafka: " + op, Class: class, Reason: reason, Err: err}
}

func outage(op string, err error) *waybill.Error {
	return fail(op, waybill.ClassOutage, waybill.ReasonNone, err)
}

// misconfigured is an error whose cause an operator must repair.
func misconfigured(op, format string, args ...any) *waybill.Error {
	return outage(op, fmt.Errorf("%w: "+format, append([]any{waybill.ErrMisconfigured}, args...)...))
}

func closed(op string) *waybill.Error { return outage(op, waybill.ErrClosed) }

// lost is the error of a delivery that the receiver does not hold.
func lost() *waybill.Error {
	return fail("settle", waybill.ClassRejected, waybill.ReasonNone, waybill.ErrLeaseLost)
}

// matches reports whether err is one of list.
func matches(err error, list ...error) bool {
	return slices.ContainsFunc(list, func(e error) bool { return errors.Is(err, e) })
}

// refused reports whether a broker has refused a batch for its content. A single record of it may be the cause.
func refused(err error) bool {
	return matches(err, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.PolicyViolation,
		kerr.UnsupportedForMessageFormat, kerr.CorruptMessage)
}

// topicUnknown reports whether a topic was deleted. It may have been made anew, or not be known to all brokers yet.
func topicUnknown(err error) bool {
	return matches(err, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID)
}

// moved reports whether a commit was too early or too late for the group's state. It says nothing about who holds the
// partition now: the client finds out.
func moved(err error) bool {
	return matches(err, kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.StaleMemberEpoch)
}

// classify returns err, which came from the client or a broker, with its class.
func classify(op string, err error) *waybill.Error {
	if e, ok := errors.AsType[*waybill.Error](err); ok {
		return e
	}
	switch {
	case matches(err, kerr.MessageTooLarge, kerr.RecordListTooLarge):
		return fail(op, waybill.ClassPermanent, waybill.ReasonTooLarge, fmt.Errorf("%w: raise max.message.bytes of the log", err))
	case refused(err):
		return fail(op, waybill.ClassRejected, waybill.ReasonRejected, err)
	case errors.Is(err, kgo.ErrClientClosed):
		return outage(op, fmt.Errorf("%w (%w)", waybill.ErrClosed, err))
	case matches(err, kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed,
		kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState, kerr.InvalidTopicException, kerr.InvalidSessionTimeout):
		return misconfigured(op, "%w: check the credentials, the user's rights, and the settings", err)
	case matches(err, context.Canceled, context.DeadlineExceeded):
		return outage(op, fmt.Errorf("no answer in time; the result is unknown (%w)", err))
	}
	return outage(op, err)
}
