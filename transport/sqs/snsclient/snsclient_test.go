package snsclient_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill/transport/sqs/snsclient"
)

// serve answers calls of SNS's protocol with XML.
func serve(t *testing.T, answer func(in url.Values) (status int, body string)) *awssns.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		status, body := answer(r.PostForm)
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	return awssns.New(awssns.Options{
		Region: "us-east-1", BaseEndpoint: &server.URL, Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""), Retryer: aws.NopRetryer{},
	})
}

const topic = "arn:aws:sns:us-east-1:000000000000:orders.fifo"

// TR-15: an entry goes to SNS with its attributes, its group and its deduplication id, and each has its own result.
func TestPublishBatch(t *testing.T) {
	t.Parallel()
	client := serve(t, func(in url.Values) (int, string) {
		for key, want := range map[string]string{
			"Action": "PublishBatch", "TopicArn": topic,
			"PublishBatchRequestEntries.member.1.Id":                                          "0",
			"PublishBatchRequestEntries.member.1.Message":                                     "größe\n",
			"PublishBatchRequestEntries.member.1.MessageGroupId":                              "g",
			"PublishBatchRequestEntries.member.1.MessageDeduplicationId":                      "d",
			"PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Name":              "ce_topic",
			"PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Value.DataType":    "String",
			"PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Value.StringValue": "a",
			"PublishBatchRequestEntries.member.2.Id":                                          "1",
		} {
			if got := in.Get(key); got != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
		return http.StatusOK, `<PublishBatchResponse><PublishBatchResult>
<Successful><member><Id>0</Id><MessageId>m</MessageId></member></Successful>
<Failed><member><Id>1</Id><Code>InvalidParameter</Code><Message>too long</Message><SenderFault>true</SenderFault></member></Failed>
</PublishBatchResult></PublishBatchResponse>`
	})
	out, err := snsclient.New(client).PublishBatch(t.Context(), topic, []types.SendMessageBatchRequestEntry{
		{
			Id: new("0"), MessageBody: new("größe\n"), MessageGroupId: new("g"), MessageDeduplicationId: new("d"),
			MessageAttributes: map[string]types.MessageAttributeValue{"ce_topic": {DataType: new("String"), StringValue: new("a")}},
		},
		{Id: new("1"), MessageBody: new("b")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Successful) != 1 || *out.Successful[0].Id != "0" || *out.Successful[0].MessageId != "m" {
		t.Errorf("successful: %v", out.Successful)
	}
	if len(out.Failed) != 1 || *out.Failed[0].Id != "1" || *out.Failed[0].Code != "InvalidParameter" || *out.Failed[0].Message != "too long" || !out.Failed[0].SenderFault {
		t.Errorf("failed: %v", out.Failed)
	}
}

// TR-15: subscriptions come on several pages, and only queues count.
func TestSubscriptions(t *testing.T) {
	t.Parallel()
	member := func(protocol, endpoint, arn string) string {
		return "<member><Protocol>" + protocol + "</Protocol><Endpoint>" + endpoint + "</Endpoint><SubscriptionArn>" + arn + "</SubscriptionArn></member>"
	}
	client := serve(t, func(in url.Values) (int, string) {
		switch {
		case in.Get("Action") == "GetSubscriptionAttributes" && in.Get("SubscriptionArn") == "s2":
			return http.StatusOK, `<GetSubscriptionAttributesResponse><GetSubscriptionAttributesResult><Attributes>
<entry><key>RawMessageDelivery</key><value>true</value></entry></Attributes></GetSubscriptionAttributesResult></GetSubscriptionAttributesResponse>`
		case in.Get("Action") == "ListSubscriptionsByTopic" && in.Get("NextToken") == "":
			return http.StatusOK, "<ListSubscriptionsByTopicResponse><ListSubscriptionsByTopicResult><NextToken>more</NextToken><Subscriptions>" +
				member("sqs", "q1", "PendingConfirmation") + member("https", "q3", "s3") +
				"</Subscriptions></ListSubscriptionsByTopicResult></ListSubscriptionsByTopicResponse>"
		case in.Get("Action") == "ListSubscriptionsByTopic" && in.Get("NextToken") == "more":
			return http.StatusOK, "<ListSubscriptionsByTopicResponse><ListSubscriptionsByTopicResult><Subscriptions>" + member("sqs", "q2", "s2") +
				"</Subscriptions></ListSubscriptionsByTopicResult></ListSubscriptionsByTopicResponse>"
		}
		return http.StatusNotFound, `<ErrorResponse><Error><Type>Sender</Type><Code>NotFound</Code><Message>no</Message></Error></ErrorResponse>`
	})
	sns := snsclient.New(client)
	have, err := sns.Subscriptions(t.Context(), topic)
	if err != nil || len(have) != 2 || have["q1"] != "PendingConfirmation" || have["q2"] != "s2" {
		t.Errorf("got %v, %v", have, err)
	}
	if a, err := sns.SubscriptionAttributes(t.Context(), "s2"); err != nil || a["RawMessageDelivery"] != "true" {
		t.Errorf("got %v, %v", a, err)
	}
	if _, err := sns.SubscriptionAttributes(t.Context(), "gone"); err == nil {
		t.Error("a subscription that does not exist is no error")
	}
	if snsclient.New(nil) != nil {
		t.Error("no client is a client")
	}
}
