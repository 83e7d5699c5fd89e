package waybill

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"reflect"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/internal/check"
)

// Codec turns values of one type into bytes and back. It must be safe for concurrent use. The caller owns the result of
// Encode. Decode must not keep data.
type Codec[T any] interface {
	// ContentType is the media type that Encode writes. Empty means that the codec takes any.
	ContentType() string
	Encode(v T) ([]byte, error)
	Decode(data []byte) (T, error)
}

// Topic is a routing key together with the type of its messages. Declare it once, and use it in the producer and in the
// consumer. It is immutable and safe for concurrent use.
type Topic[T any] struct {
	name   string
	codec  Codec[T]
	kind   string
	routes []string

	cancellable bool
}

// NewTopic declares a topic. The name is a routing key: words separated by dots, at most 255 bytes. A bad name is
// reported when a message is staged or a handler is registered. Declare a topic once: an outbox refuses messages of one
// topic that come from declarations with different types or codecs.
func NewTopic[T any](name string, codec Codec[T]) Topic[T] {
	return Topic[T]{name: name, codec: codec, kind: fmt.Sprintf("%s with codec %T", reflect.TypeFor[T](), codec)}
}

// On returns the topic with default routes, for messages that name none.
func (t Topic[T]) On(routes ...string) Topic[T] {
	t.routes = slices.Clone(routes)
	return t
}

// Cancellable returns the topic with cancellable messages: they can be cancelled although they are due; see
// [Message].
func (t Topic[T]) Cancellable() Topic[T] {
	t.cancellable = true
	return t
}

// Name returns the routing key.
func (t Topic[T]) Name() string { return t.name }

// ContentType returns the media type of its messages: the codec's, or application/octet-stream if that takes any.
func (t Topic[T]) ContentType() string {
	if t.codec == nil {
		return ""
	}
	return cmp.Or(t.codec.ContentType(), "application/octet-stream")
}

// Message returns a message that carries v. If v or its pointer has a method Validate() error, that must return nil.
// Its error, or that of encoding, is kept in the message and reported by Stage.
func (t Topic[T]) Message(v T, opts ...MessageOption) Message {
	if t.codec == nil {
		return Message{Envelope: Envelope{Topic: t.name}, err: noCodec(t.name)}
	}
	var body []byte
	err := validate(v)
	if err == nil {
		body, err = t.codec.Encode(v)
	}
	m := RawMessage(t.name, t.ContentType(), body, opts...)
	m.kind = t.kind
	m.Cancellable = m.Cancellable || t.cancellable
	if len(m.Routes) == 0 {
		m.Routes = t.routes
	}
	if err != nil {
		m.err = fmt.Errorf("encode %T for topic %q: %w", v, t.name, err)
	}
	return m
}

// CancelKeys names the message with a dedupe key for [Canceller]: one key for each route that a message of the topic is
// staged on. Give the options that said where the message goes, [Routes] and [InLane]; without them it is where the
// topic's messages go. A key without its route names a message on [DefaultRoute] alone.
func (t Topic[T]) CancelKeys(dedupeKey string, opts ...MessageOption) []CancelKey {
	m := RawMessage(t.name, "", nil, opts...)
	if len(m.Routes) == 0 {
		m.Routes = t.routes
	}
	if len(m.Routes) == 0 {
		m.Routes = []string{DefaultRoute}
	}
	keys := make([]CancelKey, len(m.Routes))
	for i, route := range m.Routes {
		keys[i] = CancelKey{Route: LaneRoute(route, m.Lane), Topic: t.name, DedupeKey: dedupeKey}
	}
	return keys
}

// Decode returns the value that e carries. If it or its pointer has a method Validate() error, that must return nil. An
// error is Permanent with reason undecodable. It contains no payload bytes, unless Validate's text does.
func (t Topic[T]) Decode(e *Envelope) (T, error) {
	var zero T
	if t.codec == nil {
		return zero, undecodable(noCodec(t.name))
	}
	if want := t.codec.ContentType(); want != "" && e.ContentType != "" && !sameMediaType(want, e.ContentType) {
		return zero, undecodable(fmt.Errorf("topic %q: content type is %q, its codec reads %q: "+
			"producer and consumer must agree", t.name, check.Clip(e.ContentType, 100), want))
	}
	v, err := t.codec.Decode(e.Body)
	if err != nil {
		return zero, undecodable(fmt.Errorf("topic %q: %T from %d bytes: %w", t.name, zero, len(e.Body), err))
	}
	if err := validate(v); err != nil {
		return zero, undecodable(fmt.Errorf("topic %q: %T from %d bytes does not fit: %w", t.name, zero, len(e.Body), err))
	}
	return v, nil
}

// validator is a type that knows which of its values are valid.
type validator interface{ Validate() error }

// validate asks v or its pointer whether it is valid, if either can say so. Other values are not copied to the heap.
func validate[T any](v T) error {
	if _, ok := any((*T)(nil)).(validator); ok {
		return validatePointer(v)
	}
	if _, ok := any(v).(validator); ok {
		return validateValue(v)
	}
	return nil
}

func validatePointer[T any](v T) error { return any(&v).(validator).Validate() }

func validateValue[T any](v T) error {
	if check.Nil(v) {
		return errors.New("is null")
	}
	return any(v).(validator).Validate()
}

func noCodec(topic string) error {
	return fmt.Errorf("topic %q has no codec: declare it with waybill.NewTopic", topic)
}

func undecodable(err error) error {
	return &Error{Op: "waybill: decode", Class: ClassPermanent, Reason: ReasonUndecodable, Err: err}
}

func sameMediaType(want, got string) bool {
	w, _, err1 := mime.ParseMediaType(want)
	g, _, err2 := mime.ParseMediaType(got)
	if err1 != nil || err2 != nil {
		return strings.EqualFold(want, got)
	}
	return w == g || strings.HasSuffix(g, "+json") && w == "application/json" ||
		w == "application/protobuf" && g == "application/x-protobuf"
}

type jsonCodec[T any] struct{}

// JSON returns the codec for application/json by encoding/json. Decoding errors name offsets and types, never content.
func JSON[T any]() Codec[T] { return jsonCodec[T]{} }

func (jsonCodec[T]) ContentType() string { return "application/json" }

func (jsonCodec[T]) Encode(v T) ([]byte, error) { return json.Marshal(v) }

func (jsonCodec[T]) Decode(data []byte) (T, error) {
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		return v, redactJSON(err)
	}
	return v, nil
}

// redactJSON drops the parts of an encoding/json error that quote the document.
func redactJSON(err error) error {
	switch e := err.(type) { //nolint:errorlint // encoding/json returns these unwrapped
	case *json.SyntaxError:
		return fmt.Errorf("invalid JSON at byte %d", e.Offset)
	case *json.UnmarshalTypeError:
		return fmt.Errorf("JSON at byte %d does not fit %s (field %q)", e.Offset, e.Type, e.Field)
	default:
		return fmt.Errorf("JSON refused by %T", err)
	}
}

type bytesCodec struct{ contentType string }

// Bytes returns the codec that passes bytes through. An empty contentType means application/octet-stream for writing
// and any type for reading.
func Bytes(contentType string) Codec[[]byte] { return bytesCodec{contentType} }

func (c bytesCodec) ContentType() string { return c.contentType }

func (bytesCodec) Encode(v []byte) ([]byte, error) { return v, nil }

func (bytesCodec) Decode(data []byte) ([]byte, error) { return append([]byte(nil), data...), nil }
