package kafka_test

import (
	"context"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/internal/patience"
)

// TR-14: a message that waits for a quota is an outage that names the quota, not an answer that is merely late.
func TestQuotaIsNamed(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	bus := dial(t, f.address(), opts)
	f.cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		res.ThrottleMillis = 600_000
		for _, asked := range req.(*kmsg.ProduceRequest).Topics {
			topic := kmsg.NewProduceResponseTopic()
			topic.Topic, topic.TopicID = asked.Topic, asked.TopicID
			for _, p := range asked.Partitions {
				answer := kmsg.NewProduceResponseTopicPartition()
				answer.Partition = p.Partition
				topic.Partitions = append(topic.Partitions, answer)
			}
			res.Topics = append(res.Topics, topic)
		}
		return res, nil, true
	})
	if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: "first", Topic: "orders", Key: "k"}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		failed <- bus.Publish(ctx, []waybill.Envelope{{ID: "second", Topic: "orders", Key: "k"}}).FirstErr()
	}()
	patience.Until(t, "the client holds the message", func() bool { return kafka.Buffered(bus) > 0 })
	cancel()
	err := <-failed
	if waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), "producer_byte_rate") {
		t.Errorf("a message that waits for a quota: %v", err)
	}
}
