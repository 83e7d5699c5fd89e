package table_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/transport/table"
)

// cleaner notes when it is cleaned. At first it says that there is more.
type cleaner struct {
	core.OutboxStore
	mu   sync.Mutex
	at   []time.Time
	more int
}

func (c *cleaner) Clean(context.Context, string, time.Duration) (core.Cleaned, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = append(c.at, time.Now())
	return core.Cleaned{Leader: true, More: len(c.at) <= c.more}, nil
}

// DB-09: processes that begin together do not clean together.
func TestCleansAtItsOwnTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, all := time.Now(), make([]*cleaner, 20)
		for i := range all {
			all[i] = &cleaner{OutboxStore: newStore(t)}
			subscribe(t, newTable(t, all[i], table.Options{CleanInterval: time.Minute}))
		}
		patience.Pass(t, time.Minute)
		synctest.Wait()
		early := 0
		for i, c := range all {
			if len(c.at) == 0 {
				t.Fatalf("%d has not cleaned within its interval", i)
			}
			if c.at[0].Sub(began) < 30*time.Second {
				early++
			}
		}
		if early == 0 || early == len(all) {
			t.Errorf("%d of %d clean in the first half of the interval", early, len(all))
		}
	})
}

// DB-09: a process goes on cleaning while there is more.
func TestCleansAllThereIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &cleaner{OutboxStore: newStore(t), more: 30}
		subscribe(t, newTable(t, c, table.Options{CleanInterval: time.Hour}))
		patience.Pass(t, 90*time.Minute) // an hour until it begins
		synctest.Wait()
		if len(c.at) <= c.more {
			t.Errorf("it cleaned %d times", len(c.at))
		}
	})
}
