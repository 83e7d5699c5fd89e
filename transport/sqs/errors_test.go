package sqs_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/waybill-go/waybill"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// The table of errors: what each code of SQS, and each failure without an answer, does to a message.
func TestErrors(t *testing.T) {
	t.Parallel()
	const pub, set = sqstransport.OpPublish, sqstransport.OpSettle
	code := func(code string) error {
		return &smithy.GenericAPIError{Code: code, Message: "text", Fault: smithy.FaultClient}
	}
	param := func(text string) error {
		return &smithy.GenericAPIError{Code: "InvalidParameterValue", Message: text, Fault: smithy.FaultClient}
	}
	server := &smithy.GenericAPIError{Code: "Whatever", Fault: smithy.FaultServer}
	for name, c := range map[string]struct {
		op    string
		err   error
		class waybill.Class
		match error // or nil
	}{
		"throttled":             {pub, code("RequestThrottled"), waybill.ClassOutage, nil},
		"throttling":            {pub, code("ThrottlingException"), waybill.ClassOutage, nil},
		"over limit":            {set, code("OverLimit"), waybill.ClassOutage, nil},
		"key throttled":         {pub, code("KmsThrottled"), waybill.ClassOutage, nil},
		"key denied":            {pub, code("KmsAccessDenied"), waybill.ClassOutage, waybill.ErrMisconfigured},
		"no queue":              {pub, code("QueueDoesNotExist"), waybill.ClassOutage, waybill.ErrMisconfigured},
		"no queue, older":       {pub, code("AWS.SimpleQueueService.NonExistentQueue"), waybill.ClassOutage, waybill.ErrMisconfigured},
		"no queue, typed":       {pub, &types.QueueDoesNotExist{}, waybill.ClassOutage, waybill.ErrMisconfigured},
		"denied":                {set, code("AccessDenied"), waybill.ClassOutage, waybill.ErrMisconfigured},
		"denied, front end":     {pub, code("AccessDeniedException"), waybill.ClassOutage, waybill.ErrMisconfigured},
		"wrong signature":       {pub, code("SignatureDoesNotMatch"), waybill.ClassOutage, waybill.ErrMisconfigured},
		"unknown credentials":   {pub, code("InvalidClientTokenId"), waybill.ClassOutage, waybill.ErrMisconfigured},
		"expired token":         {pub, code("ExpiredToken"), waybill.ClassOutage, nil},
		"bad characters":        {pub, code("InvalidMessageContents"), waybill.ClassRejected, nil},
		"too long":              {pub, code("BatchRequestTooLong"), waybill.ClassPermanent, nil},
		"larger than the queue": {pub, param("Reason: Message must be shorter than 1024 bytes."), waybill.ClassPermanent, nil},
		"bad parameter":         {pub, param("MessageGroupId"), waybill.ClassRejected, nil},
		"not ours":              {set, code("ReceiptHandleIsInvalid"), waybill.ClassOutage, waybill.ErrLeaseLost},
		"not in flight":         {set, code("AWS.SimpleQueueService.MessageNotInflight"), waybill.ClassOutage, waybill.ErrLeaseLost},
		"expired handle":        {set, param("The receipt handle has expired."), waybill.ClassOutage, waybill.ErrLeaseLost},
		"12 hours":              {set, param("Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"), waybill.ClassOutage, waybill.ErrLeaseLost},
		"other parameter":       {set, param("something else"), waybill.ClassOutage, nil},
		"unknown, sender":       {pub, code("Whatever"), waybill.ClassRejected, nil},
		"unknown, server":       {pub, server, waybill.ClassOutage, nil},
		"unknown, settle":       {set, code("Whatever"), waybill.ClassOutage, nil},
		"internal":              {pub, code("InternalFailure"), waybill.ClassOutage, nil},
		"network":               {pub, &net.OpError{Op: "dial", Err: io.EOF}, waybill.ClassOutage, io.EOF},
		"context":               {pub, context.DeadlineExceeded, waybill.ClassOutage, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check := func(err *waybill.Error) {
				t.Helper()
				if err.Class != c.class || c.match != nil && !errors.Is(err, c.match) {
					t.Errorf("class %s, want %s: %v", err.Class, c.class, err)
				}
				for _, other := range []error{waybill.ErrMisconfigured, waybill.ErrLeaseLost} {
					if errors.Is(err, other) && c.match != other { //nolint:errorlint // which one is expected
						t.Errorf("%v matches %v", err, other)
					}
				}
			}
			check(sqstransport.CallError(c.op, "q", c.err))
			api, ok := errors.AsType[smithy.APIError](c.err)
			if !ok {
				return
			}
			code, text := api.ErrorCode(), api.ErrorMessage()
			check(sqstransport.EntryError(c.op, "q", &types.BatchResultErrorEntry{Code: &code, Message: &text, SenderFault: api.ErrorFault() == smithy.FaultClient}))
		})
	}
	if e := sqstransport.CallError(pub, "q", code("QueueDoesNotExist")); !e.TopicOnly {
		t.Error("a missing queue stops topics that other queues get")
	}
}
