package sqlite

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/core"
)

var _ core.Limiter = (*Store)(nil)

const (
	limitText    = `SELECT state FROM waybill_limits WHERE name = ?1`
	setLimitText = `INSERT INTO waybill_limits (name, state) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET state = excluded.state`
)

// UpdateLimit keeps the state of a limit in the file; see [core.Limiter]. It holds SQLite's write lock for a moment,
// and writes nothing if nothing changes. The clock is Options.Now, which the processes of one machine share.
func (s *Store) UpdateLimit(ctx context.Context, name string, change func(state string, now time.Time) string) error {
	if err := core.CheckLimit(name, ""); err != nil {
		return err
	}
	return s.write(ctx, "limit", func(w *work) (bool, error) {
		was := ""
		if _, err := w.one(ctx, []any{&was}, limitText, name); err != nil {
			return false, err
		}
		state := change(was, time.UnixMicro(w.now))
		if err := core.CheckLimit(name, state); err != nil || state == was {
			return false, err
		}
		_, err := w.exec(ctx, setLimitText, name, state)
		return true, err
	})
}
