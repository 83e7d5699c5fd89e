package memory

import (
	"context"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

var _ core.Limiter = (*Store)(nil)

// limits are the states of limits. They have a lock of their own, which is held during a change.
type limits struct {
	mu     sync.Mutex
	states map[string]string
}

// UpdateLimit keeps the state of a limit in memory; see [core.Limiter]. So the limit holds within this process. change
// is called once, while other updates wait.
func (s *Store) UpdateLimit(ctx context.Context, name string, change func(state string, now time.Time) string) error {
	if err := core.CheckLimit(name, ""); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return outage("limit", err)
	}
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	state := change(s.limits.states[name], s.now())
	if err := core.CheckLimit(name, state); err != nil {
		return err
	}
	if s.limits.states == nil {
		s.limits.states = map[string]string{}
	}
	s.limits.states[name] = state
	return nil
}
