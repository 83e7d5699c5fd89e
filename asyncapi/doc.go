// Package asyncapi writes the AsyncAPI 3 document of an application: the sent messages, by topic, and the received
// ones, by subscription.
//
//	document, err := asyncapi.Application{
//		Title: "billing", Version: "1.4.0",
//		Sends:    []asyncapi.Message{asyncapi.Of(InvoiceSent)},
//		Receives: []asyncapi.Queue{{Subscription: sub, Messages: []asyncapi.Message{asyncapi.Of(Placed)}}},
//	}.Document()
//
// Write it from a test or a command of your own, so that it is made anew with the code.
//
// # Guarantees
//
// The document fits the JSON Schema that AsyncAPI publishes for version 3.0.0. Each topic is a channel with one
// message. Sending on a topic and receiving on a queue are operations; the queue's name is in x-waybill-queue. The same
// application gives the same bytes. A topic that is declared twice must be the same, and a queue must be bound for the
// topics of its messages.
//
// # Concurrency
//
// All functions are safe for concurrent use.
//
// # Ownership
//
// The result belongs to the caller. Nothing that was passed is changed or kept.
//
// # Limits
//
// The schema of a payload is that of a Go type as encoding/json writes it. Types with a MarshalJSON of their own, types
// inside themselves, and content types other than JSON have none: set Message.Payload. Servers, and the fields that
// transports put around a body (docs/wire-format.md), are not described.
package asyncapi
