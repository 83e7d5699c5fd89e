package postgres

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// highWaterSQL is the highest stamp the outbox remembers: the mark that settling leaves, and the stamps of the newest
// rows. It reads a bounded number of them.
const highWaterSQL = `
SELECT greatest(0, (SELECT value FROM {meta} WHERE name = {hlc_name}),
                   (SELECT max(n.hlc) FROM (SELECT o.hlc FROM {outbox} o ORDER BY o.seq DESC LIMIT 1000) n))`

const markSQL = `
UPDATE {meta} SET value = $1 WHERE name = {hlc_name} AND value < $1`

// markEvery is how often at most a process writes the clock's mark.
const markEvery = time.Second

// HighWater returns the highest HLC stamp that the outbox remembers: in its newest 1,000 rows or, for what was published
// since, in a mark that settling writes at most once a second.
func (o *Outbox) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	if err := o.ready(ctx); err != nil {
		return 0, err
	}
	mark, err := o.stager.seeded(o.pool.QueryRow(ctx, o.stager.first).Scan)
	if err != nil {
		return 0, failure("read the clock's mark", err)
	}
	return mark, nil
}

// Seed raises the outbox's clock above what the outbox remembers. The first Stage does it anyway, with one statement
// more in the caller's transaction; a process that calls Seed at start spares it. It fails as an outage if the mark is
// too far ahead of the wall clock, as Stage then does; see package hlc.
func (o *Outbox) Seed(ctx context.Context) error {
	mark, err := o.HighWater(ctx)
	if err != nil {
		return err
	}
	return o.stager.seed(mark)
}

// Clock returns the clock that stamps what is staged.
func (o *Outbox) Clock() *hlc.Clock { return o.stager.stamper.Clock() }

var _ core.ClockSeeder = (*Outbox)(nil)
