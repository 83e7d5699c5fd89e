package sqs_test

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/waybill-go/waybill"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
	"github.com/waybill-go/waybill/transport/sqs/snsclient"
)

func ExampleNew() {
	ctx := context.Background()
	cfg := aws.Config{Region: "eu-central-1"} // from config.LoadDefaultConfig
	bindings := map[string][]string{"billing-orders": {"orders.*"}}

	bus, err := sqstransport.New(awssqs.NewFromConfig(cfg), sqstransport.Options{
		Prefix:   "prod-",
		Bindings: bindings, // queue → topics; producers and consumers share it
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bus.Close(ctx)

	fmt.Println(bus.Publish(ctx, []waybill.Envelope{{ID: "1", Topic: "users.created"}})[0])
	// Output:
	// waybill/sqs: publish: topic "users.created": unroutable: no queue is bound for the topic (Options.Bindings)
}

func ExampleOptions_Policy() {
	opts := sqstransport.Options{Prefix: "prod-", Passive: true}
	text, err := opts.Policy(sqstransport.RoleRelay, "eu-central-1", "123456789012", "billing-orders")
	fmt.Println(text, err)
	// Output:
	// {
	//   "Version": "2012-10-17",
	//   "Statement": [
	//     {
	//       "Sid": "Publish",
	//       "Effect": "Allow",
	//       "Action": [
	//         "sqs:GetQueueUrl",
	//         "sqs:SendMessage"
	//       ],
	//       "Resource": [
	//         "arn:aws:sqs:eu-central-1:123456789012:prod-billing-orders"
	//       ]
	//     }
	//   ]
	// }
	//  <nil>
}

func ExampleOptions_topic() {
	ctx := context.Background()
	cfg := aws.Config{Region: "eu-central-1"} // from config.LoadDefaultConfig
	bindings := map[string][]string{"billing-orders": {"orders.*"}}

	bus, err := sqstransport.New(awssqs.NewFromConfig(cfg), sqstransport.Options{
		TopicARN: "arn:aws:sns:eu-central-1:123456789012:orders",
		SNS:      snsclient.New(awssns.NewFromConfig(cfg)),
		Bindings: bindings, // the queues that must be subscribed, and their topics
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bus.Close(ctx)

	text, err := sqstransport.Options{TopicARN: "arn:aws:sns:eu-central-1:123456789012:orders"}.Policy(sqstransport.RoleRelay, "eu-central-1", "123456789012")
	fmt.Println(text, err)
	// Output:
	// {
	//   "Version": "2012-10-17",
	//   "Statement": [
	//     {
	//       "Sid": "Publish",
	//       "Effect": "Allow",
	//       "Action": [
	//         "sns:ListSubscriptionsByTopic",
	//         "sns:Publish"
	//       ],
	//       "Resource": [
	//         "arn:aws:sns:eu-central-1:123456789012:orders"
	//       ]
	//     },
	//     {
	//       "Sid": "Verify",
	//       "Effect": "Allow",
	//       "Action": [
	//         "sns:GetSubscriptionAttributes"
	//       ],
	//       "Resource": [
	//         "*"
	//       ]
	//     }
	//   ]
	// }
	//  <nil>
}
