// Package snsclient lets package sqs publish to a topic of Amazon SNS.
//
//	bus, err := sqstransport.New(awssqs.NewFromConfig(cfg), sqstransport.Options{
//		TopicARN: "arn:aws:sns:eu-central-1:123456789012:orders",
//		SNS:      snsclient.New(awssns.NewFromConfig(cfg)),
//		Bindings: bindings, // queue → topics: the subscriptions that Check expects
//	})
//
// It is a package of its own so that programs without SNS do not contain the SDK of SNS. See docs/sqs.md.
//
// # Guarantees
//
//   - Each entry of a batch has its own result. Errors are the SDK's, for package sqs to classify.
//
// # Concurrency
//
// The value is safe for concurrent use, as the SDK's client is.
//
// # Ownership
//
// The client is the caller's, with its region, credentials, endpoint and retries.
//
// # Limits
//
// SNS takes ten entries and 256 KiB a call. Package sqs keeps within both.
package snsclient

import (
	"context"

	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// Client is what New needs of *sns.Client of aws-sdk-go-v2.
type Client interface {
	PublishBatch(ctx context.Context, in *awssns.PublishBatchInput, fns ...func(*awssns.Options)) (*awssns.PublishBatchOutput, error)
	ListSubscriptionsByTopic(ctx context.Context, in *awssns.ListSubscriptionsByTopicInput, fns ...func(*awssns.Options)) (*awssns.ListSubscriptionsByTopicOutput, error)
	GetSubscriptionAttributes(ctx context.Context, in *awssns.GetSubscriptionAttributesInput, fns ...func(*awssns.Options)) (*awssns.GetSubscriptionAttributesOutput, error)
}

var _ Client = (*awssns.Client)(nil)

// New returns client as Options.SNS of package sqs needs it, nil for nil. It makes no request.
func New(client Client) sqstransport.SNS {
	if client == nil {
		return nil
	}
	return adapter{client}
}

type adapter struct{ client Client }

// PublishBatch implements sqs.SNS.
func (a adapter) PublishBatch(ctx context.Context, topicARN string, entries []types.SendMessageBatchRequestEntry) (*awssqs.SendMessageBatchOutput, error) {
	in := &awssns.PublishBatchInput{TopicArn: &topicARN, PublishBatchRequestEntries: make([]snstypes.PublishBatchRequestEntry, len(entries))}
	for i := range entries {
		e := &entries[i]
		attributes := make(map[string]snstypes.MessageAttributeValue, len(e.MessageAttributes))
		for name, v := range e.MessageAttributes {
			attributes[name] = snstypes.MessageAttributeValue{DataType: v.DataType, StringValue: v.StringValue, BinaryValue: v.BinaryValue}
		}
		in.PublishBatchRequestEntries[i] = snstypes.PublishBatchRequestEntry{
			Id: e.Id, Message: e.MessageBody, MessageAttributes: attributes,
			MessageGroupId: e.MessageGroupId, MessageDeduplicationId: e.MessageDeduplicationId,
		}
	}
	out, err := a.client.PublishBatch(ctx, in)
	if err != nil {
		return nil, err
	}
	result := &awssqs.SendMessageBatchOutput{}
	for _, s := range out.Successful {
		result.Successful = append(result.Successful, types.SendMessageBatchResultEntry{Id: s.Id, MessageId: s.MessageId})
	}
	for _, f := range out.Failed {
		result.Failed = append(result.Failed, types.BatchResultErrorEntry{Id: f.Id, Code: f.Code, Message: f.Message, SenderFault: f.SenderFault})
	}
	return result, nil
}

// Subscriptions implements sqs.SNS.
func (a adapter) Subscriptions(ctx context.Context, topicARN string) (map[string]string, error) {
	have := map[string]string{}
	for pages := awssns.NewListSubscriptionsByTopicPaginator(a.client, &awssns.ListSubscriptionsByTopicInput{TopicArn: &topicARN}); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range page.Subscriptions {
			if s.Protocol != nil && *s.Protocol == "sqs" && s.Endpoint != nil && s.SubscriptionArn != nil {
				have[*s.Endpoint] = *s.SubscriptionArn
			}
		}
	}
	return have, nil
}

// SubscriptionAttributes implements sqs.SNS.
func (a adapter) SubscriptionAttributes(ctx context.Context, subscriptionARN string) (map[string]string, error) {
	out, err := a.client.GetSubscriptionAttributes(ctx, &awssns.GetSubscriptionAttributesInput{SubscriptionArn: &subscriptionARN})
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}
