// Package transform changes the bodies of messages on their way to the broker, and changes them back at the consumer:
// it compresses them, encrypts them, signs them, or keeps large ones elsewhere.
//
//	steps := []transform.Step{
//		transform.Gzip{},
//		transform.Encrypt{KeyID: "2026-11", Keys: transform.StaticKeys(keys)},
//		transform.ClaimCheck{Blobs: bucket},
//	}
//	publisher, err := transform.Publisher(bus, steps...)     // of a relay, or of one of its routes
//	handler, err := transform.Handler(billing, steps...)     // of a subscription
//
// The header content-encoding names the steps that were done, in their order, as in HTTP (RFC 9110, 8.4). So steps can
// be added while messages are under way, and a consumer that has more steps than were done does no harm: give a new
// step to the consumers first.
//
// # Guarantees
//
//   - No step loses a message. If the source of keys or the store of blobs does not answer, that is an outage of the
//     message's route, or of its subscription. It costs no attempt. The engine pauses and probes, and goes on when
//     there are answers. At the relay a missing key is an outage, too.
//   - A message that names a key, a blob or a coding which the consumer has not is retried with the subscription's
//     delays, for a key or a blob that may come a little later, and parked as undecodable then. It stops no other
//     message.
//   - A body that no repair can make readable is parked as undecodable at once: it was changed on its way, or it is
//     larger than the bound of a step.
//   - Messages of one key keep their order: a message behind one that could not be changed is sent after that one.
//   - Message and header stay as they were in the outbox, in the queue and where messages are parked. So a retry, a
//     redrive and a replay work as before.
//   - A handler with [Encrypt] gets no body that was not encrypted for its message, and one with [Sign] no message that
//     was not signed.
//   - Errors hold no body and no key.
//
// # Concurrency
//
// Publishers and handlers are safe for concurrent use if their steps are. The steps of this package are.
//
// # Ownership
//
// A step gets a body to read, and returns one of its own. The publisher belongs to the caller as before: nothing here
// closes it.
//
// # Limits
//
// The outbox holds the body as it was staged; so does the table as queue, which has no publisher. To encrypt it there,
// encrypt it in a codec. Everything but the body stays readable: topic, key, headers, tenant. Foreign consumers must
// undo the steps themselves; docs/transform.md has the formats. The body of a parked message is shown, and edited, as
// it was sent.
package transform
