package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
)

func fail(op string, class waybill.Class, reason waybill.Reason, err error) *waybill.Error {
	return &waybill.Error{Op: "waybill/nats: " + op, Class: class, Reason: reason, Err: err}
}

func outage(op string, err error) *waybill.Error {
	return fail(op, waybill.ClassOutage, waybill.ReasonNone, err)
}

// misconfigured is an error whose cause an operator must repair.
func misconfigured(op, format string, args ...any) *waybill.Error {
	return outage(op, fmt.Errorf("%w: "+format, append([]any{waybill.ErrMisconfigured}, args...)...))
}

func closed(op string) *waybill.Error { return outage(op, waybill.ErrClosed) }

// Codes of the server that the client has no name for.
const (
	codeInsufficientResources = 10023
	codeStorageExceeded       = 10047
	codeStoreFailed           = 10077 // full: maximum messages or bytes exceeded
	codeRepeatInProgress      = 10158 // a message with the id is on its way
)

// classify returns err, which came from the client or the server, with its class.
func classify(op string, err error) *waybill.Error {
	if e, ok := errors.AsType[*waybill.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[jetstream.JetStreamError](err); ok && e.APIError() != nil {
		switch code := e.APIError(); {
		case code.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
			return fail(op, waybill.ClassPermanent, waybill.ReasonTooLarge, fmt.Errorf("%w: raise the stream's max_msg_size", err))
		case code.ErrorCode == jetstream.JSErrCodeJetStreamNotEnabled, code.ErrorCode == jetstream.JSErrCodeJetStreamNotEnabledForAccount:
			return misconfigured(op, "%w: enable JetStream in the server, and for the account", err)
		case code.ErrorCode == codeStoreFailed, code.ErrorCode == codeStorageExceeded, code.ErrorCode == codeInsufficientResources:
			return outage(op, fmt.Errorf("the stream or the server's store is full: %w", err))
		case code.Code >= 500, code.ErrorCode == codeRepeatInProgress:
			return outage(op, err)
		}
		return fail(op, waybill.ClassRejected, waybill.ReasonRejected, err)
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return fail(op, waybill.ClassPermanent, waybill.ReasonTooLarge, fmt.Errorf("%w: raise the server's max_payload", err))
	case errors.Is(err, nats.ErrConnectionClosed):
		return outage(op, fmt.Errorf("the client has given the connection up (%w)", err))
	case errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg), errors.Is(err, nats.ErrHeadersNotSupported):
		return fail(op, waybill.ClassPermanent, waybill.ReasonRejected, err)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrPermissionViolation), errors.Is(err, nats.ErrAuthExpired):
		return misconfigured(op, "%w: check the credentials and the user's permissions", err)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return outage(op, fmt.Errorf("nobody answers for the stream: it was deleted, or JetStream is not ready (%w)", err))
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outage(op, fmt.Errorf("no answer in time; the result is unknown (%w)", err))
	}
	if _, ok := errors.AsType[*url.Error](err); ok { // its text holds the URL
		return misconfigured(op, "the URL cannot be read: it must look like nats://host:4222")
	}
	return outage(op, err)
}
