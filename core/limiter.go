package core

import (
	"context"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// maxLimitState bounds the state of a limit, in bytes.
const maxLimitState = 1 << 20

// Limiter keeps the limits that processes share: a small text for each name. The consumer decides what is in it; a
// limiter stores. It is safe for concurrent use. Errors have a class: an unreachable database is an outage, and an
// error that an operator must fix matches [waybill.ErrMisconfigured].
type Limiter interface {
	// UpdateLimit replaces the state of the limit name by what change returns, as one step: change is given the
	// state that the update before it stored, and no other update of the name comes between. The state of an
	// unknown name is empty. now is the time by the one clock that all processes share, read during the call; it
	// does not go back unless that clock does.
	//
	// UpdateLimit may call change several times; the last call counts. It stores nothing if change panics. If it
	// returns an error the new state may have been stored or not, as after a lost connection. A name has at most
	// 255 bytes and a state 1 MiB, of UTF-8 without NUL.
	UpdateLimit(ctx context.Context, name string, change func(state string, now time.Time) string) error
}

// CheckLimit returns an [*waybill.InvalidError] if name cannot name a limit, or state is too long. Every limiter begins
// with it, and calls it again with the state to store.
func CheckLimit(name, state string) error {
	var p []string
	if name == "" {
		p = append(p, "name: is empty")
	} else if s := check.Name(name); s != "" {
		p = append(p, "name: "+s)
	}
	if len(state) > maxLimitState {
		p = append(p, fmt.Sprintf("state: has %d bytes; at most %d are allowed", len(state), maxLimitState))
	}
	return waybill.Invalid("waybill: limit", p...)
}
