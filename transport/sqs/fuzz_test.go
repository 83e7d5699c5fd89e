package sqs

import (
	"maps"
	"testing"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// FuzzDecode reads anything that a producer can send. What could be read is read as the same message after it was sent
// again.
func FuzzDecode(f *testing.F) { // SE-08
	f.Add(`{"headers":{"a":"b"},"waybill-encoding":"base64"}`, "cloudEvents_id", "1", []byte(nil), "Ym9keQ==", "m1")
	f.Add(`{"waybill-encoding":"zip","waybill-priority":255}`, "content-type", "", []byte("\xff"), "-", "")
	f.Add(`{"attributes":{"hlc":"x","expirytime":"9999-12-31T23:59:59Z"}}`, "traceparent", "", []byte(nil), "", "m1")
	f.Add(`{"waybill-attempt":-1,"waybill-due":9223372036854775807}`, "cloudEvents_", "", []byte(nil), `{"Type":"Notification","TopicArn":"x","MessageId":"y"}`, "m1")
	f.Add(`null`, "x", "y", []byte("z"), "", "")
	f.Add(``, "x", "y", []byte("z"), "", "")
	f.Fuzz(func(t *testing.T, rest, name, text string, binary []byte, body, id string) {
		if !utf8.ValidString(rest + "|" + name + "|" + text + "|" + body + "|" + id) {
			return // SQS takes and sends Unicode
		}
		m := types.Message{Body: &body, MessageId: &id, MessageAttributes: map[string]types.MessageAttributeValue{}}
		if name != "" {
			a := types.MessageAttributeValue{BinaryValue: binary}
			if text != "" {
				a.StringValue = &text
			}
			m.MessageAttributes[name] = a
		}
		if rest != "" {
			m.MessageAttributes[attrRest] = types.MessageAttributeValue{StringValue: &rest}
		}
		first := decode(&m, "q")
		if first.env.Topic == "" || first.env.Priority > 9 {
			t.Errorf("topic %q, priority %d", first.env.Topic, first.env.Priority)
		}
		if first.err != nil {
			return
		}
		w, err := encode(&first.env)
		if err != nil {
			return
		}
		again := decode(&types.Message{Body: &w.body, MessageId: &id, MessageAttributes: w.attributes}, "q")
		a, b := &first.env, &again.env
		if again.err != nil || a.ID != b.ID || a.Topic != b.Topic || a.Key != b.Key || string(a.Body) != string(b.Body) || !maps.Equal(a.Headers, b.Headers) {
			t.Errorf("sent again it is another: %+v\n%+v, %v", a, b, again.err)
		}
	})
}
