package sqs

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// SNS confirms a message that no queue gets. Three mistakes lead to that: a queue without a subscription, a filter
// policy that lets nothing through, and a queue whose own policy keeps SNS out. The publisher looks for the first two,
// and the consumer, which may read the queue's attributes, for the third.

// SNS is what a transport calls of Amazon SNS. Package snsclient makes one of the SDK's client, so that programs
// without SNS do not contain that SDK. Errors are the SDK's. A Transport calls it concurrently.
type SNS interface {
	// PublishBatch sends up to ten entries to a topic. The result has the form that SQS gives it.
	PublishBatch(ctx context.Context, topicARN string, entries []types.SendMessageBatchRequestEntry) (*awssqs.SendMessageBatchOutput, error)
	// Subscriptions returns the subscriptions of queues to a topic: the queue's ARN → that of the subscription.
	Subscriptions(ctx context.Context, topicARN string) (map[string]string, error)
	// SubscriptionAttributes returns the attributes of a subscription.
	SubscriptionAttributes(ctx context.Context, subscriptionARN string) (map[string]string, error)
}

// verifyOnce verifies the subscriptions before the first message goes to the topic of SNS, and after a Check that found
// fault with them.
func (t *Transport) verifyOnce(ctx context.Context) error {
	switch {
	case t.opts.TopicARN == "" || t.verified.Load():
		return nil
	case t.opts.SNS == nil:
		return misconfigured(opPublish, "there is no client for %s: set Options.SNS", object(t.opts.TopicARN))
	}
	return t.verifySubscriptions(ctx, opPublish)
}

// verifySubscriptions returns an error unless each queue of Options.Bindings gets its messages from the topic of SNS,
// in raw form.
func (t *Transport) verifySubscriptions(ctx context.Context, op string) error {
	arn := t.opts.TopicARN
	limited, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	defer cancel()
	have, err := t.opts.SNS.Subscriptions(limited, arn)
	if err != nil {
		return callError(op, arn, err)
	}
	var problems []string
	for _, queue := range slices.Sorted(maps.Keys(t.opts.Bindings)) {
		name, subscription := t.opts.QueueName(queue), ""
		for queueARN, s := range have {
			if strings.HasSuffix(queueARN, ":"+name) { // in any account and region
				subscription = s
			}
		}
		var problem string
		switch {
		case subscription == "":
			problem = "it is not subscribed: subscribe it with RawMessageDelivery true"
		case !strings.HasPrefix(subscription, "arn:"):
			problem = fmt.Sprintf("its subscription is %s: confirm it", subscription)
		default:
			a, err := t.opts.SNS.SubscriptionAttributes(limited, subscription)
			if err != nil {
				return callError(op, arn, err)
			}
			problem = subscriptionProblem(a, t.opts.Bindings[queue])
		}
		if problem != "" {
			problems = append(problems, fmt.Sprintf("queue %q: %s", name, problem))
		}
	}
	t.verified.Store(len(problems) == 0)
	if len(problems) > 0 {
		return misconfigured(op, "%s does not reach all queues of Options.Bindings, and SNS would drop messages in silence: %s", object(arn), strings.Join(problems, "; "))
	}
	return nil
}

// subscriptionProblem returns the fault of a subscription of SNS, with its cure, or "".
func subscriptionProblem(attributes map[string]string, bindings []string) string {
	if raw := attributes["RawMessageDelivery"]; raw != "true" {
		return fmt.Sprintf("RawMessageDelivery of its subscription is %q: set it to true", raw)
	}
	policy := attributes["FilterPolicy"]
	if policy == "" || attributes["FilterPolicyScope"] == "MessageBody" { // only the bodies decide
		return ""
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal([]byte(policy), &keys); err != nil {
		return fmt.Sprintf("FilterPolicy of its subscription cannot be read: %s", err)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		var values []any
		if json.Unmarshal(keys[key], &values) != nil || key == "$or" {
			continue // not for us to say
		}
		switch {
		case key == prefixCE+"topic":
			for _, b := range bindings {
				topic := strings.NewReplacer("*", "x", "#", "x").Replace(b)
				if !slices.ContainsFunc(values, func(v any) bool { return passes(v, topic) }) {
					return fmt.Sprintf("FilterPolicy of its subscription excludes topics of the binding %q, such as %q: extend %s of the one, or correct the other", b, topic, key)
				}
			}
		case !sends(key) && !slices.ContainsFunc(values, wantsAbsence):
			return fmt.Sprintf("FilterPolicy of its subscription asks for the attribute %q, which no message has: use %stopic or %stype, for headers are inside of the attribute %s",
				key, prefixCE, prefixCE, attrRest)
		}
	}
	return ""
}

// sends reports whether messages can have an attribute of SNS of that name.
func sends(name string) bool {
	return name == attrContentType || name == attrRest || slices.Contains(slices.Collect(maps.Values(own)), name)
}

func wantsAbsence(v any) bool {
	m, ok := v.(map[string]any)
	return ok && m["exists"] == false
}

// passes reports whether a value of a filter policy matches s. It takes an operator that it does not know for a match.
func passes(v any, s string) bool {
	switch v := v.(type) {
	case string:
		return v == s
	case map[string]any:
		for operator, arg := range v {
			text, _ := arg.(string)
			switch operator {
			case "prefix":
				return strings.HasPrefix(s, text)
			case "suffix":
				return strings.HasSuffix(s, text)
			case "equals-ignore-case":
				return strings.EqualFold(s, text)
			case "exists":
				return arg == true
			case "anything-but":
				list, ok := arg.([]any)
				if !ok {
					list = []any{arg}
				}
				return !slices.ContainsFunc(list, func(v any) bool { return passes(v, s) })
			}
		}
		return true
	}
	return false
}

// queueStatement is the statement of a queue's policy that lets the topic send. The queue has no ARN before it is made.
func queueStatement(topicARN string) string {
	return `{"Effect":"Allow","Principal":{"Service":"sns.amazonaws.com"},"Action":"sqs:SendMessage","Resource":"*",` +
		`"Condition":{"ArnEquals":{"aws:SourceArn":` + strconv.Quote(topicARN) + `}}}`
}

func queuePolicy(topicARN string) string {
	return `{"Version":"2012-10-17","Statement":[` + queueStatement(topicARN) + `]}`
}

// oneOrMore is a value of a policy: one, or a list.
type oneOrMore[T any] []T

// UnmarshalJSON takes both forms.
func (l *oneOrMore[T]) UnmarshalJSON(b []byte) error {
	if err := json.Unmarshal(b, (*[]T)(l)); err == nil {
		return nil
	}
	*l = make([]T, 1)
	return json.Unmarshal(b, &(*l)[0])
}

// admits reports whether a queue's policy has a statement that lets the topic of SNS send. It looks at the actions and
// at conditions on aws:SourceArn; SNS applies the others.
func admits(policy, topicARN string) bool {
	var p struct {
		Statement oneOrMore[struct {
			Effect    string
			Action    oneOrMore[string]
			Condition map[string]map[string]oneOrMore[string]
		}]
	}
	if json.Unmarshal([]byte(policy), &p) != nil {
		return false
	}
	matches := func(pattern, s string) bool {
		ok, err := path.Match(strings.ToLower(pattern), strings.ToLower(s))
		return ok && err == nil
	}
	for _, s := range p.Statement {
		ok := s.Effect == "Allow" && slices.ContainsFunc(s.Action, func(a string) bool { return matches(a, "sqs:SendMessage") })
		for _, keys := range s.Condition {
			for key, arns := range keys {
				ok = ok && (!strings.EqualFold(key, "aws:SourceArn") || slices.ContainsFunc(arns, func(a string) bool { return matches(a, topicARN) }))
			}
		}
		if ok {
			return true
		}
	}
	return false
}
