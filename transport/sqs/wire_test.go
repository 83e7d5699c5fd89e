package sqs_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// TR-10: the names on the wire are a contract: this test fails when one changes, and when the documentation's example
// is another.
func TestWireGolden(t *testing.T) {
	t.Parallel()
	e := sharedtest.Envelope()
	body, attributes, err := sqstransport.Encode(&e)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		fmt.Fprintf(&b, "%-15s %s  %s\n", name, *attributes[name].DataType, *attributes[name].StringValue)
	}
	fmt.Fprintf(&b, "\n%s\n", body)
	sharedtest.Golden(t, "testdata/wire.golden", b.String(), "../../docs/wire-format.md")
}

// TR-10, TR-13: text that SQS cannot carry as it is arrives all the same.
func TestWireOfOddText(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(e *waybill.Envelope){
		"full":                 func(*waybill.Envelope) {},
		"no body":              func(e *waybill.Envelope) { e.Body = nil },
		"binary body":          func(e *waybill.Envelope) { e.Body = []byte{0, 1, 0xff} },
		"noncharacter in body": func(e *waybill.Envelope) { e.Body = []byte("a\ufffeb") },
		"body of a dash":       func(e *waybill.Envelope) { e.Body = []byte("-") },
		"control in the topic": func(e *waybill.Envelope) { e.Topic = "a\x01b" },
		"control in the trace": func(e *waybill.Envelope) { e.TraceParent = "\x7f\x01" },
		"noncharacters":        func(e *waybill.Envelope) { e.Subject, e.Headers["x"] = "\ufffe\uffff", "\uffff<&>\u2028" },
		"control header":       func(e *waybill.Envelope) { e.Headers["a\x02"] = "\x03\r\n" },
		"only an id":           func(e *waybill.Envelope) { *e = waybill.Envelope{ID: "1", Topic: "t"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := sharedtest.Envelope()
			change(&want)
			body, attributes, err := sqstransport.Encode(&want)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range append([]string{body}, values(attributes)...) {
				if s == "" || strings.ContainsFunc(s, func(c rune) bool {
					return c < ' ' && c != '\t' && c != '\r' && c != '\n' || c == '\ufffe' || c == '\uffff'
				}) {
					t.Errorf("%q is not what SQS takes", s)
				}
			}
			id := "broker's"
			got, _, _ := sqstransport.Decode(&types.Message{MessageId: &id, Body: &body, MessageAttributes: attributes}, "q")
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			if len(attributes) > 8 {
				t.Errorf("%d attributes leave less than two for others", len(attributes))
			}
		})
	}
}

func values(attributes map[string]types.MessageAttributeValue) (all []string) {
	for _, a := range attributes {
		all = append(all, *a.StringValue)
	}
	return all
}

// TR-10: a message without any of our attributes is consumed; unknown attributes survive a retry, and so do the id and
// the topic, which SQS would replace.
func TestForeign(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	client := newClient(t, fake.URL())
	bus := newBus(t, client, opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q"})
	attributes := map[string]types.MessageAttributeValue{"ce_custom": text("kept"), "ce_time": text("yesterday")}
	binary := "Binary"
	attributes["raw"] = types.MessageAttributeValue{DataType: &binary, BinaryValue: []byte{0xff}}
	for i := range 7 { // ten in all: a copy has none left for its own
		attributes[fmt.Sprintf("more-%d", i)] = text("x")
	}
	if err := sendRaw(t.Context(), client, opts, "q", attributes); err != nil {
		t.Fatal(err)
	}
	first := receive(t, r)
	e := first.Envelope
	if first.Err != nil || e.ID == "" || e.Topic != "q" || e.Headers["ce_custom"] != "kept" || e.Headers["ce_time"] != "yesterday" ||
		e.Headers["raw"] != "/w==" || e.Headers["more-6"] != "x" || string(e.Body) != "foreign" {
		t.Errorf("got %+v, %v", e, first.Err)
	}
	settle(t, r, core.AckRetry(first, 0, errors.New("once more")))
	second := receive(t, r)
	if d := cmp.Diff(e, second.Envelope); d != "" || second.Attempt != 2 {
		t.Errorf("attempt %d: %s", second.Attempt, d)
	}
	settle(t, r, core.AckReject(second, waybill.ReasonRejected, errors.New("no")))
	got := parked(fake, opts, "q")
	if len(got) != 1 || cmp.Diff(e, got[0].Envelope) != "" {
		t.Errorf("parked %+v", got)
	}
}

// A message that SNS has wrapped, since raw delivery is off, says so. It stays unreadable as a copy. Other JSON that
// looks like it is a foreign message.
func TestWrappedBySNS(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	client := newClient(t, fake.URL())
	r := subscribe(t, newBus(t, client, opts), core.Subscription{Queue: "q"})
	send := func(body string) {
		t.Helper()
		url, err := client.GetQueueUrl(t.Context(), &awssqs.GetQueueUrlInput{QueueName: new(opts.QueueName("q"))})
		if err != nil {
			t.Fatal(err)
		}
		entry := types.SendMessageBatchRequestEntry{Id: new("0"), MessageBody: &body}
		if _, err := client.SendMessageBatch(t.Context(), &awssqs.SendMessageBatchInput{QueueUrl: url.QueueUrl, Entries: []types.SendMessageBatchRequestEntry{entry}}); err != nil {
			t.Fatal(err)
		}
	}
	send(`{"Type":"Notification","MessageId":"1","TopicArn":"arn:aws:sns:eu:1:t","Message":"{}"}`)
	for range 2 {
		d := receive(t, r)
		if waybill.ReasonOf(d.Err) != waybill.ReasonUndecodable || !strings.Contains(d.Err.Error(), "raw message delivery") {
			t.Fatalf("got %v", d.Err)
		}
		settle(t, r, core.AckRelease(d))
	}
	settle(t, r, core.AckDone(receive(t, r)))
	for _, body := range []string{`{"Type":"Notification","MessageId":"1"}`, `{"Type":"x","MessageId":"1","TopicArn":"a"}`, `"TopicArn"`, `["TopicArn"]`} {
		send(body)
		d := receive(t, r)
		if d.Err != nil || string(d.Envelope.Body) != body {
			t.Errorf("%s: %v", body, d.Err)
		}
		settle(t, r, core.AckDone(d))
	}
}

// A message that cannot be read keeps its attributes and body, and stays unreadable when it is replayed.
func TestUnreadableIsKept(t *testing.T) {
	t.Parallel()
	fake, opts := startFake(t), quick(false)
	client := newClient(t, fake.URL())
	r := subscribe(t, newBus(t, client, opts), core.Subscription{Queue: "q"})
	if err := sendRaw(t.Context(), client, opts, "q", map[string]types.MessageAttributeValue{"waybill": text("{bad")}); err != nil {
		t.Fatal(err)
	}
	d := receive(t, r)
	if waybill.ReasonOf(d.Err) != waybill.ReasonUndecodable {
		t.Fatalf("got %v", d.Err)
	}
	settle(t, r, core.AckRelease(d))
	if d = receive(t, r); d.Err == nil {
		t.Error("a copy became readable")
	}
	settle(t, r, core.AckReject(d, waybill.ReasonUndecodable, d.Err))
	if got := fake.Messages(opts.ParkedName("q")); len(got) != 1 || !strings.Contains(*got[0].Attributes["waybill"].StringValue, `"waybill-unread":"{bad"`) {
		t.Errorf("parked %+v", got)
	}
}
