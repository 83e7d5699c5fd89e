package proto

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/waybill-go/waybill"
)

// ContentType is the media type that the codec writes.
const ContentType = "application/protobuf"

// Codec returns the codec for messages of type T, a pointer to a generated struct.
func Codec[T proto.Message]() waybill.Codec[T] { return codec[T]{} }

type codec[T proto.Message] struct{}

func (codec[T]) ContentType() string { return ContentType }

func (codec[T]) Encode(v T) ([]byte, error) {
	if any(v) == nil || !v.ProtoReflect().IsValid() {
		return nil, errors.New("the message is nil")
	}
	return proto.Marshal(v)
}

func (codec[T]) Decode(data []byte) (T, error) {
	var zero T
	if any(zero) == nil {
		return zero, fmt.Errorf("%T is not a concrete message type; use a pointer to a generated struct", new(T))
	}
	v, err := newOf(zero)
	if err != nil {
		return zero, err
	}
	if err := proto.Unmarshal(data, v); err != nil {
		return zero, err
	}
	return v, nil
}

// newOf makes an empty message of zero's type. A type that knows its descriptor only at run time, such as
// dynamicpb.Message, cannot do that, and panics.
func newOf[T proto.Message](zero T) (v T, err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("a nil %T does not know what message it is; use a pointer to a generated struct", zero)
		}
	}()
	v, ok := zero.ProtoReflect().Type().New().Interface().(T)
	if !ok {
		return zero, fmt.Errorf("%T makes messages of another type", zero)
	}
	return v, nil
}
