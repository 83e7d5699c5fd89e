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
	isMissing        // the queue or the topic does not exist
	isForbidden      // the credentials may not
	isKey            // the encryption key cannot be used
	isMessage        // this message is refused
	isTooLarge
	isLost    // the delivery is not ours any more
	isInvalid // a parameter, which can be a message or a receipt handle
)

// kinds are the error codes of SQS, SNS and AWS's front end, without what stands before the last dot or #.
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

	// SNS has names of its own for the same.
	"NotFound": isMissing, "AuthorizationError": isForbidden, "Throttled": isOutage, "KMSThrottling": isOutage,
	"KMSAccessDenied": isKey, "KMSDisabled": isKey, "KMSInvalidState": isKey, "KMSNotFound": isKey, "KMSOptInRequired": isKey,
	"InvalidParameter": isInvalid, "ParameterValueInvalid": isInvalid,
}

// object names a queue, or a topic of SNS, by the name that the errors of its calls have. Only an ARN has colons.
func object(name string) string {
	if strings.Contains(name, ":") {
		return fmt.Sprintf("topic of SNS %q", name)
	}
	return fmt.Sprintf("queue %q", name)
}

func kindOf(code string) kind {
	if i := strings.LastIndexAny(code, ".#"); i >= 0 {
		code = code[i+1:]
	}
	return kinds[code]
}

// callError classifies the failure of a whole request. name is that of the queue in SQS, or the ARN of a topic.
func callError(op, name string, err error) *waybill.Error {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok { // no answer: the network, the context, the client's own credentials
		return outage(op, fmt.Errorf("%s: no answer; the result is unknown: %w", object(name), err))
	}
	return codeError(op, name, api.ErrorCode(), api.ErrorMessage(), api.ErrorFault() == smithy.FaultClient, err)
}

// entryError classifies the failure of one entry of a batch.
func entryError(op, name string, e *types.BatchResultErrorEntry) *waybill.Error {
	code, text := value(e.Code), value(e.Message)
	return codeError(op, name, code, text, e.SenderFault, fmt.Errorf("%s: %s", code, text))
}

// codeError classifies by code, and an unknown one by the side at fault.
func codeError(op, name, code, text string, sender bool, cause error) *waybill.Error {
	switch kindOf(code) {
	case isOutage:
		return outage(op, fmt.Errorf("%s: %w", object(name), cause))
	case isMissing:
		cure := "start its consumer, which makes it, or create it"
		if strings.Contains(name, ":") {
			cure = "create it, or correct Options.TopicARN and the client's region"
		}
		e := misconfigured(op, "%s does not exist: %s (%w)", object(name), cure, cause)
		e.TopicOnly = op == opPublish && !strings.Contains(name, ":")
		return e
	case isForbidden:
		return misconfigured(op, "%s: the credentials may not do this: extend their IAM policy, or its own; compare the account (%w)", object(name), cause)
	case isKey:
		return misconfigured(op, "%s: its encryption key cannot be used: permit it to these credentials, and enable it (%w)", object(name), cause)
	case isMessage:
		return rejected(op, fmt.Errorf("%s refuses the message: %w", object(name), cause))
	case isTooLarge:
		return permanent(op, waybill.ReasonTooLarge, fmt.Errorf("%s: send less, or a reference (%w)", object(name), cause))
	case isLost:
		return outage(op, fmt.Errorf("%w: %s (%w)", waybill.ErrLeaseLost, object(name), cause))
	case isInvalid:
		return parameterError(op, name, text, cause)
	case isUnknown:
	}
	if sender && op == opPublish {
		return rejected(op, fmt.Errorf("%s: %w", object(name), cause))
	}
	return outage(op, fmt.Errorf("%s: %w", object(name), cause))
}

// parameterError tells apart what InvalidParameterValue stands for.
func parameterError(op, name, text string, cause error) *waybill.Error {
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
	case has("topicarn", "topic arn"):
		return misconfigured(op, "%s is not one of the client's region: correct Options.TopicARN, or the region (%w)", object(name), cause)
	case op == opPublish && has("size", "longer than", "bytes", "too long"):
		return permanent(op, waybill.ReasonTooLarge, fmt.Errorf("%s: raise its MaximumMessageSize, or send less (%w)", object(name), cause))
	case op == opPublish:
		return rejected(op, fmt.Errorf("%s: %w", object(name), cause))
	// "visibility": the 12 hours are over
	case has("receipt handle", "receipthandle", "expired", "visibility", "in flight", "inflight"):
		return outage(op, fmt.Errorf("%w: %s (%w)", waybill.ErrLeaseLost, object(name), cause))
	}
	return outage(op, fmt.Errorf("%s: %w", object(name), cause))
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
