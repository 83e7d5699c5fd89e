// Package sqs is a transport over Amazon SQS, with standard or FIFO queues.
//
//	client := sqs.NewFromConfig(cfg) // of aws-sdk-go-v2
//	bus, err := sqstransport.New(client, sqstransport.Options{
//		Bindings: map[string][]string{"billing-orders": {"orders.*"}},
//	})
//
// SQS has no topics: the publisher sends a copy to each queue that is bound for a message's topic. The bindings are in
// Options.Bindings, which producers and consumers share as code. Or SNS fans out: with Options.TopicARN the publisher
// sends to a topic of SNS, through package snsclient. See docs/sqs.md, and docs/wire-format.md for the form of a
// message.
//
// # Log
//
// Every line has an attribute "event": sqs.bindings_local. docs/metrics.md explains it.
//
// # Guarantees
//
//   - A nil result of Publish means that SQS confirmed every copy of the message. A topic that no queue is bound for is
//     waybill.ErrUnroutable. If some of the copies fail, the message fails; the queues that have it get it again.
//   - With Options.TopicARN a nil result means that SNS confirmed the message. At Check, and before the first message,
//     the publisher verifies that the queues of Options.Bindings are subscribed in raw form, and that no filter policy
//     excludes their topics. While that is not so, it sends nothing.
//   - Each entry of a batch has its own result. A batch that SQS refuses as a whole because of one message is sent
//     again one by one, and only that one fails. Throttling is an outage.
//   - A deduplication id is new for each sending, so FIFO queues swallow nothing that is sent again on purpose. A
//     message that is published again since its result is unknown keeps its id, and SQS drops the repeat for five
//     minutes. In a standard queue, and over a standard topic, each such try can leave a copy.
//   - A retry, a release and a rejection are copies, and the original is deleted only after SQS confirmed the copy. In
//     a FIFO queue a retry and a release leave the message where it is, and make it visible later, so that its key
//     waits for it.
//   - A delay beyond 15 minutes is made of several, with Delivery.NotBefore.
//   - A cancelled Receive hides no message: the messages of its request wait for the next Receive, and go back without
//     one within a third of Options.HoldFor.
//   - SQS itself parks what it delivered more than Options.DeliveryLimit times, above Subscription.MaxDeliveries.
//
// # Concurrency
//
// A Transport and its receivers are safe for concurrent use. Calls of Publish share Options.Requests requests in
// progress. A receiver has one request for messages in progress while its queue is empty, up to 8 while it is full.
//
// # Ownership
//
// The client is the caller's, with its region, credentials, endpoint, TLS and retries; Close leaves it open. The bytes
// of a delivery belong to the receiver of it.
//
// # Limits
//
// A message has at most 704 KiB (MaxMessageBytes), with its encoded attributes at most 1,016 KiB; over SNS 176 KiB and
// 256 KiB. A name has at most 80 characters, so other names of queues get a hash. A queue keeps a message for 14 days
// at most, and a copy begins anew.
//
// SNS drops in silence a message that no subscription takes. So a subscription that is removed, or made to exclude
// messages, while a publisher runs, loses messages for its queue until the next Check finds it.
//
// Standard queues keep no order, and SQS may deliver a settled message again. A FIFO queue has one count, so releases
// and retries raise both Attempt and Redeliveries, and a retry waits for 11 hours at most. A delivery can be held for
// 12 hours. After HoldFor a standard queue accepts a settle of a message that is another receiver's by then.
//
// A message that was received ahead, and went back, counts as a delivery: when a receiver is closed, or paused for
// longer than a third of HoldFor just after it asked.
//
// A look at parked messages hides them from other looks, and from replays, until it ends: at most 10,000, and of a FIFO
// queue ten of each key. When a receiver is closed while it waits for messages, SQS may hide one that it was just
// sending, for HoldFor.
package sqs
