package proto_test

import (
	"errors"
	"strings"
	"testing"

	goproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/codec/proto"
)

func TestRoundTrip(t *testing.T) { // ST-04
	t.Parallel()
	topic := waybill.NewTopic("things.made", proto.Codec[*structpb.Struct]())
	want, err := structpb.NewStruct(map[string]any{"name": "ü 🗝", "n": 1.5, "list": []any{true, nil}})
	if err != nil {
		t.Fatal(err)
	}
	m := topic.Message(want)
	if m.ContentType != "application/protobuf" {
		t.Errorf("content type is %q", m.ContentType)
	}
	for _, ct := range []string{
		"application/protobuf", "application/x-protobuf",
		"application/protobuf; proto=google.protobuf.Struct", "",
	} {
		e := m.Envelope
		e.ContentType = ct
		got, err := topic.Decode(&e)
		if err != nil {
			t.Fatalf("content type %q: %v", ct, err)
		}
		if !goproto.Equal(want, got) {
			t.Errorf("content type %q: got %v, want %v", ct, got, want)
		}
	}
}

func TestEmptyMessage(t *testing.T) { // ST-04
	t.Parallel()
	c := proto.Codec[*wrapperspb.StringValue]()
	body, err := c.Encode(&wrapperspb.StringValue{})
	if err != nil || len(body) != 0 {
		t.Errorf("an empty message gave %d bytes and %v", len(body), err)
	}
	if v, err := c.Decode(nil); err != nil || v == nil || v.GetValue() != "" {
		t.Errorf("no bytes gave %v and %v", v, err)
	}
}

func TestErrorsAreClearAndHoldNoContent(t *testing.T) { // ST-04
	t.Parallel()
	topic := waybill.NewTopic("things.made", proto.Codec[*wrapperspb.StringValue]())
	for name, body := range map[string]string{"cut": "\x0a\x10secret", "bad UTF-8": "\x0a\x07secret\xff", "not Protobuf": "secret secret"} {
		_, err := topic.Decode(&waybill.Envelope{Body: []byte(body)})
		if waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonUndecodable {
			t.Errorf("%s: got %v, want undecodable", name, err)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds content: %v", name, err)
		}
	}
	if _, err := topic.Decode(&waybill.Envelope{
		ContentType: "application/json",
		Body:        []byte("{}"),
	}); waybill.ReasonOf(err) != waybill.ReasonUndecodable {
		t.Errorf("JSON: got %v, want undecodable", err)
	}
	if _, err := proto.Codec[*wrapperspb.StringValue]().Encode(nil); err == nil {
		t.Error("a nil message was encoded")
	}
	if _, err := proto.Codec[goproto.Message]().Encode(nil); err == nil {
		t.Error("a nil interface was encoded")
	}
	if _, err := proto.Codec[goproto.Message]().Decode(nil); err == nil {
		t.Error("an interface was decoded")
	}
	if _, err := proto.Codec[*dynamicpb.Message]().Decode(nil); err == nil || !strings.Contains(err.Error(), "*dynamicpb.Message") {
		t.Errorf("a type without a descriptor: got %v", err)
	}
	if err := errors.Unwrap(func() error { _, err := topic.Decode(&waybill.Envelope{Body: []byte{0xff}}); return err }()); err == nil {
		t.Error("the cause is not wrapped")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x0a\x03abc"))
	c := proto.Codec[*structpb.Struct]()
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := c.Decode(data)
		if err != nil {
			return
		}
		body, err := c.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := c.Decode(body); err != nil || !goproto.Equal(v, again) && v.String() != again.String() {
			t.Errorf("decoded again: %v, %v", again, err)
		}
	})
}
