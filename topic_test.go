package waybill_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/errtext"
)

type order struct {
	ID    string `json:"id"`
	Count int    `json:"count"`
}

func TestTopicBothSides(t *testing.T) { // ST-04
	t.Parallel()
	placed := waybill.NewTopic("orders.placed", waybill.JSON[order]())
	m := placed.Message(order{"ü", 2}, waybill.Key("k"), waybill.Header("h", "v"))
	if m.Topic != "orders.placed" || m.ContentType != "application/json" || m.Key != "k" || m.Headers["h"] != "v" {
		t.Errorf("got %+v", m)
	}
	for _, ct := range []string{
		"application/json", "application/json; charset=utf-8", "APPLICATION/JSON",
		"application/vnd.shop+json", "",
	} {
		e := m.Envelope
		e.ContentType = ct
		if got, err := placed.Decode(&e); err != nil || got != (order{"ü", 2}) {
			t.Errorf("content type %q: %+v, %v", ct, got, err)
		}
	}
}

func TestRawBytesAreNotCalledJSON(t *testing.T) { // ST-04
	t.Parallel()
	body := []byte{0, 255}
	for ct, want := range map[string]string{"": "application/octet-stream", "image/png": "image/png"} {
		topic := waybill.NewTopic("t", waybill.Bytes(ct))
		m := topic.Message(body)
		if m.ContentType != want {
			t.Errorf("bytes are called %q, want %q", m.ContentType, want)
		}
		got, err := topic.Decode(&m.Envelope)
		if err != nil || !bytes.Equal(got, body) {
			t.Fatalf("got %v, %v", got, err)
		}
		if got[0] = 'x'; body[0] != 0 {
			t.Error("what was decoded shares memory with the body")
		}
	}
	if _, err := waybill.NewTopic("t", waybill.Bytes("")).Decode(&waybill.Envelope{ContentType: "anything/else"}); err != nil {
		t.Error(err)
	}
}

type custom struct{}

func (custom) ContentType() string                { return "text/x-reverse" }
func (custom) Encode(v string) ([]byte, error)    { return []byte(v), nil }
func (custom) Decode(data []byte) (string, error) { return "", errors.New("cannot") }

func TestCustomCodec(t *testing.T) { // ST-04
	t.Parallel()
	topic := waybill.NewTopic[string]("t", custom{})
	m := topic.Message("v")
	if m.ContentType != "text/x-reverse" || string(m.Body) != "v" {
		t.Errorf("got %+v", m)
	}
	if _, err := topic.Decode(&m.Envelope); waybill.ReasonOf(err) != waybill.ReasonUndecodable {
		t.Errorf("got %v", err)
	}
}

func TestUndecodableIsPermanentAndHoldsNoContent(t *testing.T) { // ST-04
	t.Parallel()
	topic := waybill.NewTopic("t", waybill.JSON[order]())
	for name, e := range map[string]waybill.Envelope{
		"no JSON":       {Body: []byte(`secret`)},
		"cut":           {Body: []byte(`{"id":"secret`)},
		"other type":    {Body: []byte(`{"id":"a","count":"secret"}`)},
		"nothing":       {},
		"other content": {ContentType: "text/plain", Body: []byte(`{"id":"secret"}`)},
	} {
		_, err := topic.Decode(&e)
		if waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonUndecodable {
			t.Errorf("%s: got %v, want undecodable", name, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds content: %v", name, err)
		}
	}
	if _, err := waybill.NewTopic[order]("t", nil).Decode(&waybill.Envelope{}); waybill.ReasonOf(err) != waybill.ReasonUndecodable {
		t.Errorf("without a codec: %v", err)
	}
}

func TestHandlerFor(t *testing.T) { // ST-04
	t.Parallel()
	topic := waybill.NewTopic("t", waybill.JSON[order]())
	var got order
	h := waybill.HandlerFor(topic, func(_ context.Context, v order) error {
		got = v
		return nil
	})
	if h.Name != "t" {
		t.Errorf("the handler is for %q", h.Name)
	}
	if _, err := h.Handle(t.Context(), &waybill.Delivery{Envelope: waybill.Envelope{Body: []byte(`{"id":"a"}`)}}); err != nil ||
		got.ID != "a" {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := h.Handle(t.Context(), &waybill.Delivery{}); waybill.ReasonOf(err) != waybill.ReasonUndecodable {
		t.Errorf("got %v", err)
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for name, tc := range map[string]struct {
		err    error
		class  waybill.Class
		reason waybill.Reason
	}{
		"none":    {nil, waybill.ClassUnknown, waybill.ReasonNone},
		"plain":   {cause, waybill.ClassUnknown, waybill.ReasonNone},
		"reject":  {waybill.Reject(cause), waybill.ClassPermanent, waybill.ReasonRejected},
		"later":   {waybill.RetryAfter(cause, -1), waybill.ClassRejected, waybill.ReasonNone},
		"outage":  {waybill.Outage(cause), waybill.ClassOutage, waybill.ReasonNone},
		"wrapped": {errors.Join(errors.New("x"), waybill.Outage(cause)), waybill.ClassOutage, waybill.ReasonNone},
		"outer": {
			&waybill.Error{Op: "op", Class: waybill.ClassPermanent, Err: waybill.Outage(cause)},
			waybill.ClassPermanent, waybill.ReasonNone,
		},
		"misconfigured": {fmt.Errorf("%w: %w", waybill.ErrMisconfigured, cause), waybill.ClassOutage, waybill.ReasonNone},
		// a handler's Reject counts for more than the class of the cause
		"misconfigured, rejected": {waybill.Reject(fmt.Errorf("%w: %w", waybill.ErrMisconfigured, cause)), waybill.ClassPermanent, waybill.ReasonRejected},
	} {
		if waybill.ClassOf(tc.err) != tc.class || waybill.ReasonOf(tc.err) != tc.reason {
			t.Errorf("%s: class %s, reason %q", name, waybill.ClassOf(tc.err), waybill.ReasonOf(tc.err))
		}
		if tc.err != nil && !errors.Is(tc.err, cause) {
			t.Errorf("%s: the cause is lost", name)
		}
	}
	for _, err := range []error{waybill.Reject(nil), waybill.RetryAfter(nil, 0), waybill.Outage(nil), &waybill.Error{}} {
		if err.Error() == "" {
			t.Errorf("%#v has no text", err)
		}
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	cause := errors.New("no such table")
	for want, inner := range map[string]error{
		"waybill/relay: store: postgres: read: no such table": &waybill.Error{
			Op:    "waybill/postgres: read",
			Class: waybill.ClassOutage, Err: cause,
		},
		"waybill/relay: store: stage: bad: no such table": &waybill.Error{
			Op:    "waybill: stage: bad",
			Class: waybill.ClassOutage, Err: cause,
		},
		"waybill/relay: store: mine: no such table": waybill.Outage(fmt.Errorf("mine: %w", cause)),
	} {
		err := errtext.Within("waybill/relay: store", inner)
		if err.Error() != want || !errors.Is(err, cause) || waybill.ClassOf(err) != waybill.ClassOutage {
			t.Errorf("%v, class %s, want %s", err, waybill.ClassOf(err), want)
		}
	}
}
