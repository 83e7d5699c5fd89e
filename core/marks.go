package core

import (
	"context"
	"time"
)

// MarkStore keeps marks where no transaction can hold both the mark and the handler's writes: in a cache, in a
// key-value store, or beside a service that a handler calls. inbox.NewAtLeastOnce makes an inbox of it. That promises
// less than an [Inbox]: a process that dies between the effect and the mark has the effect again. It is safe for
// concurrent use. Every method begins with [CheckInboxKeys]. Errors have a class: an unreachable database is an outage.
// Times are counted by the store's clock.
type MarkStore interface {
	// BeginMark claims key for token, which is never used again, until lease has passed, and returns
	// InboxNew: have the effect, and finish. InboxDuplicate means that key is done; InboxConflict, that it is
	// done with another ContentHash. If it is claimed under another token whose lease has not passed, the error
	// matches waybill.ErrInFlight. A second call with the same token renews the claim.
	BeginMark(ctx context.Context, key InboxKey, token string, lease time.Duration) (InboxStatus, error)
	// FinishMark marks key as done for at least keep (0 = for ever), also if another token claims it.
	FinishMark(ctx context.Context, key InboxKey, keep time.Duration) error
	// ForgetMark ends the claim of token. It changes nothing if key is done, or claimed under another token.
	ForgetMark(ctx context.Context, key InboxKey, token string) error
}
