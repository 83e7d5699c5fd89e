package sqs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/waybill-go/waybill"
)

func outage(op string, err error) *waybill.Error {
	return &waybill.Error{Op: "waybill/sqs: " + op, Class: waybill.ClassOutage, Err: err}
}

func permanent(op string, reason waybill.Reason, err error) *waybill.Error {
	return &waybill.Error{Op: "waybill/sqs: " + op, Class: waybill.ClassPermanent, Reason: reason, Err: err}
}

func rejected(op string, err error) *waybill.Error {
	return &waybill.Error{Op: "waybill/sqs: " + op, Class: waybill.ClassRejected, Err: err}
}

// misconfigured is an error about an object of SQS, not about a message.
func misconfigured(op, format string, args ...any) *waybill.Error {
	return outage(op, fmt.Errorf("%w: "+format, append([]any{waybill.ErrMisconfigured}, args...)...))
}

// kind is what an error code says.
type kind uint8

const (
	isUnknown   kind = iota
	isOutage         // throttled, broken, or a token that is renewed
	isMissing        // the queue does not exist
	isForbidden      // the credentials may not
	isKey            // the encryption key cannot be used
	isMessage        // this message is refused
	isTooLarge
	isLost    // the delivery is not ours any more
	isInvalid // a parameter, which can be a message or a receipt handle
)

// kinds are the error codes of SQS and of AWS's front end, without what stands before the last dot or #.
var kinds = map[string]kind{
	"RequestThrottled": isOutage, "ThrottlingException": isOutage, "Throttling": isOutage, "ThrottledException": isOutage,
	"TooManyRequestsException": isOutage, "RequestLimitExceeded": isOutage, "SlowDown": isOutage, "OverLimit": isOutage,
	"KmsThrottled": isOutage, "ServiceUnavailable": isOutage, "InternalError": isOutage, "InternalFailure": isOutage,
	"InternalServerError": isOutage, "RequestTimeout": isOutage, "RequestTimeoutException": isOutage, "RequestExpired": isOutage,
	"ExpiredToken": isOutage, "ExpiredTokenException": isOutage, "RequestTimeTooSkewed": isOutage, "QueueDeletedRecently": isOutage,

	"QueueDoesNotExist": isMissing, "NonExistentQueue": isMissing,

	"AccessDenied": isForbidden, "AccessDeniedException": isForbidden, "InvalidClientTokenId": isForbidden,
	"UnrecognizedClientException": isForbidden, "SignatureDoesNotMatch": isForbidden, "MissingAuthenticationToken": isForbidden,
	"InvalidSecurity": isForbidden, "IncompleteSignature": isForbidden, "AuthFailure": isForbidden, "OptInRequired": isForbidden,

	"KmsAccessDenied": isKey, "KmsDisabled": isKey, "KmsInvalidKeyUsage": isKey, "KmsInvalidState": isKey, "KmsNotFound": isKey,
	"KmsOptInRequired": isKey,

	"InvalidMessageContents": isMessage,
	"BatchRequestTooLong":    isTooLarge,
	"ReceiptHandleIsInvalid": isLost, "MessageNotInflight": isLost,
	"InvalidParameterValue": isInvalid, "InvalidParameterValueException": isInvalid,
}

func kindOf(code string) kind {
	if i := strings.LastIndexAny(code, ".#"); i >= 0 {
		code = code[i+1:]
	}
	return kinds[code]
}

// callError classifies the failure of a whole request. queue is the name in SQS.
func callError(op, queue string, err error) *waybill.Error {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok { // no answer: the network, the context, the client's own credentials
		return outage(op, fmt.Errorf("queue %q: no answer; the result is unknown: %w", queue, err))
	}
	return codeError(op, queue, api.ErrorCode(), api.ErrorMessage(), api.ErrorFault() == smithy.FaultClient, err)
}

// entryError classifies the failure of one entry of a batch.
func entryError(op, queue string, e *types.BatchResultErrorEntry) *waybill.Error {
	code, text := value(e.Code), value(e.Message)
	return codeError(op, queue, code, text, e.SenderFault, fmt.Errorf("%s: %s", code, text))
}

// codeError classifies by code, and an unknown one by the side at fault.
func codeError(op, queue, code, text string, sender bool, cause error) *waybill.Error {
	switch kindOf(code) {
	case isOutage:
		return outage(op, fmt.Errorf("queue %q: %w", queue, cause))
	case isMissing:
		e := misconfigured(op, "queue %q does not exist: start its consumer, which makes it, or create it (%w)", queue, cause)
		e.TopicOnly = op == opPublish
		return e
	case isForbidden:
		return misconfigured(op, "queue %q: the credentials may not do this: extend their IAM policy, or the queue's (%w)", queue, cause)
	case isKey:
		return misconfigured(op, "queue %q: its encryption key cannot be used: permit it to these credentials, and enable it (%w)", queue, cause)
	case isMessage:
		return rejected(op, fmt.Errorf("queue %q refuses the message: %w", queue, cause))
	case isTooLarge:
		return permanent(op, waybill.ReasonTooLarge, fmt.Errorf("queue %q: %w", queue, cause))
	case isLost:
		return outage(op, fmt.Errorf("%w: queue %q (%w)", waybill.ErrLeaseLost, queue, cause))
	case isInvalid:
		return parameterError(op, queue, text, cause)
	case isUnknown:
	}
	if sender && op == opPublish {
		return rejected(op, fmt.Errorf("queue %q: %w", queue, cause))
	}
	return outage(op, fmt.Errorf("queue %q: %w", queue, cause))
}

// parameterError tells apart what InvalidParameterValue stands for.
func parameterError(op, queue, text string, cause error) *waybill.Error {
	text = strings.ToLower(text)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case op == opPublish && has("size", "longer than", "bytes", "too long"):
		return permanent(op, waybill.ReasonTooLarge, fmt.Errorf("queue %q: raise its MaximumMessageSize, or send less (%w)", queue, cause))
	case op == opPublish:
		return rejected(op, fmt.Errorf("queue %q: %w", queue, cause))
	// "visibility": the 12 hours are over
	case has("receipt handle", "receipthandle", "expired", "visibility", "in flight", "inflight"):
		return outage(op, fmt.Errorf("%w: queue %q (%w)", waybill.ErrLeaseLost, queue, cause))
	}
	return outage(op, fmt.Errorf("queue %q: %w", queue, cause))
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
