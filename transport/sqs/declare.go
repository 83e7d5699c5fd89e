package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A queue can be made by Subscribe, by other programs, or by infrastructure as code. In each case it is compared with
// the needs of the promises: a queue that delays, that drops messages early, or that parks before the consumer does is
// refused at the start, with the attribute to change.

// redrive is the attribute RedrivePolicy.
type redrive struct {
	Target      string `json:"deadLetterTargetArn"`
	MaxReceives int    `json:"maxReceiveCount"`
}

// UnmarshalJSON takes the count as a number or as text: SQS answers as it was asked.
func (r *redrive) UnmarshalJSON(b []byte) error {
	var raw struct {
		Target      string          `json:"deadLetterTargetArn"`
		MaxReceives json.RawMessage `json:"maxReceiveCount"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.Trim(string(raw.MaxReceives), `"`))
	if err != nil {
		return fmt.Errorf("maxReceiveCount: %w", err)
	}
	r.Target, r.MaxReceives = raw.Target, n
	return nil
}

// attributes returns those of a queue that Subscribe makes.
func (o *Options) attributes() map[string]string {
	a := map[string]string{
		string(types.QueueAttributeNameVisibilityTimeout):      wholeSeconds(o.HoldFor),
		string(types.QueueAttributeNameMessageRetentionPeriod): wholeSeconds(o.Retention),
		string(types.QueueAttributeNameMaximumMessageSize):     strconv.Itoa(maxBytes),
	}
	if o.KMSKey != "" {
		a[string(types.QueueAttributeNameKmsMasterKeyId)] = o.KMSKey
	}
	if o.FIFO { // a group's throughput is then its own
		a[string(types.QueueAttributeNameFifoQueue)] = "true"
		a[string(types.QueueAttributeNameDeduplicationScope)] = "messageGroup"
		a[string(types.QueueAttributeNameFifoThroughputLimit)] = "perMessageGroupId"
	}
	return a
}

func wholeSeconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// declare finds or makes the queue of sub and its dead-letter queue, and compares them with what sub needs.
func (t *Transport) declare(ctx context.Context, sub *core.Subscription) error {
	name, attributes := t.opts.QueueName(sub.Queue), t.opts.attributes()
	var target string
	if !sub.DropFailed {
		parked, err := t.ensure(ctx, t.opts.ParkedName(sub.Queue), attributes)
		if err != nil {
			return err
		}
		if err := t.verify(t.opts.ParkedName(sub.Queue), parked, nil, ""); err != nil {
			return err
		}
		target = parked[string(types.QueueAttributeNameQueueArn)]
		policy, err := json.Marshal(redrive{target, t.opts.DeliveryLimit})
		if err != nil {
			return outage(opSubscribe, err)
		}
		attributes[string(types.QueueAttributeNameRedrivePolicy)] = string(policy)
	}
	if t.opts.TopicARN != "" {
		attributes[string(types.QueueAttributeNamePolicy)] = queuePolicy(t.opts.TopicARN)
	}
	have, err := t.ensure(ctx, name, attributes)
	if err != nil {
		return err
	}
	return t.verify(name, have, sub, target)
}

// ensure returns the attributes of a queue, which it makes if it does not exist.
func (t *Transport) ensure(ctx context.Context, name string, attributes map[string]string) (map[string]string, error) {
	url, err := t.url(ctx, opSubscribe, name)
	made := isMissingQueue(err) && !t.opts.Passive
	if made {
		url, err = t.create(ctx, name, attributes)
	}
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	defer cancel()
	out, err := t.client.GetQueueAttributes(limited, &awssqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	switch {
	case made && isMissingQueue(err): // SQS may take a second to show it everywhere
		return nil, outage(opSubscribe, fmt.Errorf("queue %q was just made, and is not there yet: try again in a moment (%w)", name, err))
	case err != nil:
		t.forget(name)
		return nil, callError(opSubscribe, name, err)
	}
	return out.Attributes, nil
}

func isMissingQueue(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && kindOf(api.ErrorCode()) == isMissing
}

// create makes a queue. If another process made it at the same time, its attributes are compared like those of any
// other.
func (t *Transport) create(ctx context.Context, name string, attributes map[string]string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	defer cancel()
	out, err := t.client.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	var exists *types.QueueNameExists
	switch {
	case errors.As(err, &exists): // somebody made it just now; it is compared next
		return t.url(ctx, opSubscribe, name)
	case err != nil:
		e := callError(opSubscribe, name, err)
		if api, ok := errors.AsType[smithy.APIError](err); ok && api.ErrorFault() == smithy.FaultClient && !errors.Is(e, waybill.ErrMisconfigured) && kindOf(api.ErrorCode()) != isOutage {
			return "", misconfigured(opSubscribe, "queue %q cannot be made as the options say: change them, or make it yourself (%w)", name, err)
		}
		return "", e
	}
	t.know(name, value(out.QueueUrl))
	return value(out.QueueUrl), nil
}

// verify compares what a promise needs. sub is nil for a dead-letter queue.
func (t *Transport) verify(name string, have map[string]string, sub *core.Subscription, target string) error {
	get := func(a types.QueueAttributeName) string { return have[string(a)] }
	var problems []string
	bad := func(format string, a ...any) { problems = append(problems, fmt.Sprintf(format, a...)) }
	if fifo := get(types.QueueAttributeNameFifoQueue) == "true"; fifo != t.opts.FIFO {
		bad("FifoQueue is %t: set Options.FIFO so", fifo)
	}
	if s := get(types.QueueAttributeNameMaximumMessageSize); s != "" && number(s) < maxBytes {
		bad("MaximumMessageSize is %s: set it to %d", s, maxBytes)
	}
	if s := get(types.QueueAttributeNameMessageRetentionPeriod); s != "" && number(s) < int(t.opts.Retention/time.Second) {
		bad("MessageRetentionPeriod is %s s, after which SQS drops what is in it: set it to %s, or Options.Retention to it", s, wholeSeconds(t.opts.Retention))
	}
	if s := get(types.QueueAttributeNameDelaySeconds); number(s) != 0 {
		bad("DelaySeconds is %s, which delays retries and releases, too: set it to 0", s)
	}
	if sub != nil && target != "" {
		problems = append(problems, redriveProblems(get(types.QueueAttributeNameRedrivePolicy), target, sub)...)
	}
	if arn := t.opts.TopicARN; sub != nil && arn != "" && !admits(get(types.QueueAttributeNamePolicy), arn) {
		bad("its Policy does not let %s send, so SNS drops its messages: add this statement to it: %s", object(arn), queueStatement(arn))
	}
	if len(problems) == 0 {
		return nil
	}
	return misconfigured(opSubscribe, "queue %q is not as it must be: %s", name, strings.Join(problems, "; "))
}

func redriveProblems(have, target string, sub *core.Subscription) []string {
	var r redrive
	switch err := json.Unmarshal([]byte(have), &r); {
	case have == "":
		return []string{fmt.Sprintf("it has no RedrivePolicy: set one with deadLetterTargetArn %s and maxReceiveCount above %d", target, sub.MaxDeliveries)}
	case err != nil:
		return []string{fmt.Sprintf("its RedrivePolicy cannot be read: %s", err)}
	case r.Target != target:
		return []string{fmt.Sprintf("its RedrivePolicy has deadLetterTargetArn %s: set it to %s", r.Target, target)}
	case r.MaxReceives <= sub.MaxDeliveries:
		return []string{fmt.Sprintf("its RedrivePolicy has maxReceiveCount %d, and MaxDeliveries of the subscription is %d: raise the first, or lower the second, "+
			"so that the consumer parks before SQS does", r.MaxReceives, sub.MaxDeliveries)}
	}
	return nil
}

// number reads an attribute; 0 if it is none.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}
