package consumer

import (
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

// FuzzUnwrap reads anything that a producer can send as a CloudEvent in structured mode. The id and the topic of the
// broker stay, what cannot be read stays as it is, and the error has a bound.
func FuzzUnwrap(f *testing.F) { // SE-08
	for _, body := range []string{
		`{"specversion":"1.0","id":"1","source":"/x","type":"t","data":{"a":1}}`, `{"id":"1","source":"/x","type":"t","data_base64":"Ym9keQ=="}`,
		`{"id":1e999,"source":true,"type":null}`, `{"id":"1","source":"/x","type":"t","datacontenttype":"text/plain","data":"text"}`,
		`{"id":"1","source":"/x","type":"t","data":1,"data_base64":"!"}`, `{"id":"1","id":"2","source":[1],"x":{"y":1}}`, `[]`, `null`, `{"":""}`, `{`,
		`{"id":"1","source":"/x","type":"t","time":"9999-12-31T23:59:59Z","hlc":"x","topic":"payments.made","tenant":"evil"}`, strings.Repeat(`{"a":`, 20000),
	} {
		f.Add(body, "", "mails.opened")
		f.Add(body, "1", "")
	}
	f.Fuzz(func(t *testing.T, body, id, topic string) {
		d := &waybill.Delivery{Envelope: waybill.Envelope{ID: id, Topic: topic, ContentType: structuredType + "; charset=utf-8", Body: []byte(body)}}
		unwrap(d)
		e := &d.Envelope
		switch {
		case d.Err != nil:
			if waybill.ClassOf(d.Err) != waybill.ClassPermanent || len(d.Err.Error()) > 1000 || e.ID != id || e.Topic != topic || string(e.Body) != body || e.Headers != nil {
				t.Errorf("%v, %+v", d.Err, e)
			}
		case e.ID == "" || e.Source == "" || e.Type == "", id != "" && e.ID != id, topic != "" && e.Topic != topic:
			t.Errorf("id %q of %q, topic %q of %q, source %q, type %q", e.ID, id, e.Topic, topic, e.Source, e.Type)
		}
	})
}

// FuzzLimitState reads any text as the state of a shared limit, as another service with the right to write it can. No
// more begins at a time than the limit allows.
func FuzzLimitState(f *testing.F) { // SE-08
	now := time.Unix(1_800_000_000, 0)
	for _, text := range []string{
		"", "{}", "null", "5", `{"next":9223372036854775807}`, `{"next":-9223372036854775808,"holders":null}`,
		`{"holders":{"x":{"slots":-9223372036854775808,"wants":-1,"since":9223372036854775807,"until":1800000010000000}}}`,
		`{"holders":{"me":{"slots":3,"wants":3,"until":1800000010000000},"x":{"slots":9223372036854775807,"wants":5,"until":1800000010000000}}}`,
	} {
		f.Add(text, 3, 1)
	}
	f.Fuzz(func(t *testing.T, text string, wants, busy int) {
		const most = 4
		wants, busy = wants&15, busy&3
		var s limitState
		if err := s.decode(text); err != nil {
			return
		}
		g := s.ask(&waybill.SharedLimit{Rate: 100, Burst: 10, Concurrency: most}, &limitAsk{id: "me", starts: wants, hold: time.Second, busy: busy, wants: wants}, now)
		if g.slots < 0 || g.slots > most || g.held < g.slots || g.held > max(most, busy) || g.starts < 0 || g.starts > wants || g.wait > time.Hour {
			t.Errorf("%+v", g)
		}
		if err := new(limitState).decode(s.encode()); err != nil {
			t.Error(err)
		}
	})
}
