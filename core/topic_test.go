package core_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/core"
)

type order struct {
	ID    string `json:"id"`
	Count int    `json:"count"`
}

func TestTopicBothSides(t *testing.T) { // ST-04
	t.Parallel()
	placed := core.NewTopic("orders.placed", core.JSON[order]())
	m := placed.Message(order{"ü", 2}, core.Key("k"), core.Header("h", "v"))
	if m.Topic != "orders.placed" || m.ContentType != "application/json" || m.Key != "k" || m.Headers["h"] != "v" {
		t.Errorf("got %+v", m)
	}
	for _, ct := range []string{"application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.shop+json", ""} {
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
		topic := core.NewTopic("t", core.Bytes(ct))
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
	if _, err := core.NewTopic("t", core.Bytes("")).Decode(&core.Envelope{ContentType: "anything/else"}); err != nil {
		t.Error(err)
	}
}

type custom struct{}

func (custom) ContentType() string                { return "text/x-reverse" }
func (custom) Encode(v string) ([]byte, error)    { return []byte(v), nil }
func (custom) Decode(data []byte) (string, error) { return "", errors.New("cannot") }

func TestCustomCodec(t *testing.T) { // ST-04
	t.Parallel()
	topic := core.NewTopic[string]("t", custom{})
	m := topic.Message("v")
	if m.ContentType != "text/x-reverse" || string(m.Body) != "v" {
		t.Errorf("got %+v", m)
	}
	if _, err := topic.Decode(&m.Envelope); core.ReasonOf(err) != core.ReasonUndecodable {
		t.Errorf("got %v", err)
	}
}

func TestUndecodableIsPermanentAndHoldsNoContent(t *testing.T) { // ST-04
	t.Parallel()
	topic := core.NewTopic("t", core.JSON[order]())
	for name, e := range map[string]core.Envelope{
		"no JSON":       {Body: []byte(`secret`)},
		"cut":           {Body: []byte(`{"id":"secret`)},
		"other type":    {Body: []byte(`{"id":"a","count":"secret"}`)},
		"nothing":       {},
		"other content": {ContentType: "text/plain", Body: []byte(`{"id":"secret"}`)},
	} {
		_, err := topic.Decode(&e)
		if core.ClassOf(err) != core.ClassPermanent || core.ReasonOf(err) != core.ReasonUndecodable {
			t.Errorf("%s: got %v, want undecodable", name, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds content: %v", name, err)
		}
	}
	if _, err := core.NewTopic[order]("t", nil).Decode(&core.Envelope{}); core.ReasonOf(err) != core.ReasonUndecodable {
		t.Errorf("without a codec: %v", err)
	}
}

func TestHandlerFor(t *testing.T) { // ST-04
	t.Parallel()
	topic := core.NewTopic("t", core.JSON[order]())
	var got order
	h := core.HandlerFor(topic, func(_ context.Context, v order) error {
		got = v
		return nil
	})
	if h.Name != "t" {
		t.Errorf("the handler is for %q", h.Name)
	}
	if _, err := h.Handle(t.Context(), &core.Delivery{Envelope: core.Envelope{Body: []byte(`{"id":"a"}`)}}); err != nil || got.ID != "a" {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := h.Handle(t.Context(), &core.Delivery{}); core.ReasonOf(err) != core.ReasonUndecodable {
		t.Errorf("got %v", err)
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for name, tc := range map[string]struct {
		err    error
		class  core.Class
		reason core.Reason
	}{
		"none":                    {nil, core.ClassUnknown, core.ReasonNone},
		"plain":                   {cause, core.ClassUnknown, core.ReasonNone},
		"reject":                  {core.Reject(cause), core.ClassPermanent, core.ReasonRejected},
		"later":                   {core.RetryAfter(cause, -1), core.ClassRejected, core.ReasonNone},
		"outage":                  {core.Outage(cause), core.ClassOutage, core.ReasonNone},
		"wrapped":                 {errors.Join(errors.New("x"), core.Outage(cause)), core.ClassOutage, core.ReasonNone},
		"outer":                   {&core.Error{Op: "op", Class: core.ClassPermanent, Err: core.Outage(cause)}, core.ClassPermanent, core.ReasonNone},
		"misconfigured":           {fmt.Errorf("%w: %w", core.ErrMisconfigured, cause), core.ClassOutage, core.ReasonNone},
		"misconfigured, rejected": {core.Reject(fmt.Errorf("%w: %w", core.ErrMisconfigured, cause)), core.ClassPermanent, core.ReasonRejected}, // who says so is believed
	} {
		if core.ClassOf(tc.err) != tc.class || core.ReasonOf(tc.err) != tc.reason {
			t.Errorf("%s: class %s, reason %q", name, core.ClassOf(tc.err), core.ReasonOf(tc.err))
		}
		if tc.err != nil && !errors.Is(tc.err, cause) {
			t.Errorf("%s: the cause is lost", name)
		}
	}
	for _, err := range []error{core.Reject(nil), core.RetryAfter(nil, 0), core.Outage(nil), &core.Error{}} {
		if err.Error() == "" {
			t.Errorf("%#v has no text", err)
		}
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	cause := errors.New("no such table")
	for want, inner := range map[string]error{
		"waybill/relay: store: postgres: read: no such table": &core.Error{Op: "waybill/postgres: read", Class: core.ClassOutage, Err: cause},
		"waybill/relay: store: stage: bad: no such table":     &core.Error{Op: "waybill: stage: bad", Class: core.ClassOutage, Err: cause},
		"waybill/relay: store: mine: no such table":           core.Outage(fmt.Errorf("mine: %w", cause)),
	} {
		err := core.Within("waybill/relay: store", inner)
		if err.Error() != want || !errors.Is(err, cause) || core.ClassOf(err) != core.ClassOutage {
			t.Errorf("%v, class %s, want %s", err, core.ClassOf(err), want)
		}
	}
}
