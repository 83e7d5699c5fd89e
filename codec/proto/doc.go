// Package proto is the Protobuf codec for topics. It is a separate package so that programs without Protobuf do not
// link it.
//
//	var OrderPlaced = waybill.NewTopic("orders.placed", proto.Codec[*orderspb.Placed]())
//
// # Guarantees
//
// The content type is application/protobuf; decoding also accepts application/x-protobuf. Fields that the reader's
// schema does not know are kept in the decoded message. Errors name the type and the cause, never content.
//
// # Concurrency
//
// A codec is safe for concurrent use; a message is not.
//
// # Ownership
//
// Encode returns fresh bytes. Decode returns a fresh message that shares no memory with its input.
//
// # Limits
//
// The type must be a concrete message, such as *orderspb.Placed; with another type encoding and decoding fail. Nil
// messages are refused.
package proto
