package waybill

// Reason says why a message was abandoned in the store or parked at the consumer. Reasons are stored, travel on the
// wire and label metrics: they are part of the public contract.
type Reason string

// The reasons of Waybill's own engines and adapters.
const (
	ReasonNone        Reason = ""
	ReasonRejected    Reason = "rejected"     // the broker or the handler said no, for good
	ReasonAttempts    Reason = "attempts"     // attempts spent
	ReasonUndecodable Reason = "undecodable"  // the stored row or the body cannot be read
	ReasonTooLarge    Reason = "too_large"    // beyond what the broker takes
	ReasonForbidden   Reason = "forbidden"    // the broker denied permission, or Subscription.Sources
	ReasonUnroutable  Reason = "unroutable"   // no queue is bound for it, for longer than the horizon
	ReasonExpired     Reason = "expired"      // its time was over
	ReasonCrashed     Reason = "crashed"      // too many relays died while they held it
	ReasonCancelled   Reason = "cancelled"    // cancelled by the application
	ReasonReplaced    Reason = "replaced"     // a newer one took its place
	ReasonSkipped     Reason = "skipped"      // an operator passed over it
	ReasonSetAside    Reason = "set_aside"    // an operator put it aside
	ReasonDeliveries  Reason = "deliveries"   // delivered too often without an outcome
	ReasonNoHandler   Reason = "no_handler"   // no handler for its topic or type
	ReasonNoID        Reason = "no_id"        // an inbox cannot tell it apart
	ReasonIDConflict  Reason = "id_conflict"  // two different ids on one message, or two messages with one id
	ReasonRetryPolicy Reason = "retry_policy" // the retry policy failed or asked for the impossible
)

// Reasons returns the reasons above, without ReasonNone.
func Reasons() []Reason {
	return []Reason{
		ReasonRejected, ReasonAttempts, ReasonUndecodable, ReasonTooLarge, ReasonForbidden, ReasonUnroutable, ReasonExpired,
		ReasonCrashed, ReasonCancelled, ReasonReplaced, ReasonSkipped, ReasonSetAside, ReasonDeliveries, ReasonNoHandler,
		ReasonNoID, ReasonIDConflict, ReasonRetryPolicy,
	}
}

// Cancelled reports whether the application took the record back. [Retention] has a field of its own for such records.
func (r Reason) Cancelled() bool { return r == ReasonCancelled || r == ReasonReplaced }

// Blocks reports whether an abandoned record with reason r blocks its key on a route with BlockAfterAbandon. A record
// that an operator or its application took out on purpose does not block it: cancelled, replaced, skipped, set aside.
func (r Reason) Blocks() bool {
	return r != ReasonNone && !r.Cancelled() && r != ReasonSkipped && r != ReasonSetAside
}
