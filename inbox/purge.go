package inbox

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/chance"
	"github.com/waybill-go/waybill/internal/errtext"
	"github.com/waybill-go/waybill/internal/sleep"
)

const (
	purgeBatch = 1000             // marks a transaction
	purgeRest  = 10 * time.Second // at most between two of them
	firstPurge = time.Minute      // at most until the first of a run
)

// purge deletes marks whose retention has expired.
type purge struct {
	store    core.InboxPurger // nil: cannot
	consumer string
	opts     *Options
	turn     chan struct{} // capacity 1: held by the one RunPurge that purges
}

// Purge deletes every mark of the consumer that is older than the retention, and returns their number. It deletes in
// bounded batches, each in a transaction of its own, and rests after each batch for as long as that took, until nothing
// is left or ctx ends. It does nothing if marks are kept for ever. A message whose mark was deleted has its effect
// again when it is replayed. Replay messages older than the retention only if that is intended.
func (b *Inbox[Tx]) Purge(ctx context.Context) (int, error) { return b.purge.all(ctx) }

// RunPurge purges every Options.PurgeEvery, with some jitter, the first time within a minute, and returns when ctx
// ends. A consumer calls it while it runs a handler of the inbox. Call it yourself only if no consumer runs. Of several
// calls at a time in one process one purges; several processes can purge at a time. A failure is logged, and the next
// purge tries again.
func (b *Inbox[Tx]) RunPurge(ctx context.Context) { b.purge.run(ctx) }

// all is Purge.
func (p *purge) all(ctx context.Context) (int, error) {
	keep, total := p.opts.retention(), 0
	switch {
	case keep < 0:
		return 0, nil
	case p.store == nil:
		return 0, fmt.Errorf("waybill/inbox: purge: %w", waybill.ErrUnsupported)
	}
	for {
		begin := time.Now()
		n, err := p.store.PurgeInbox(ctx, p.consumer, keep, purgeBatch)
		total += n
		if err != nil {
			return total, errtext.Within(fmt.Sprintf("waybill/inbox: purge of %q, after %d marks", p.consumer, total), err)
		}
		if n < purgeBatch {
			return total, nil
		}
		if sleep.For(ctx, min(time.Since(begin), purgeRest)) != nil {
			return total, fmt.Errorf("waybill/inbox: purge of %q, after %d marks: %w", p.consumer, total, context.Cause(ctx))
		}
	}
}

// run is RunPurge. The one call that has the turn purges; the others wait for it, so that a purge goes on when that one
// ends.
func (p *purge) run(ctx context.Context) {
	every := p.opts.PurgeEvery
	every = cmp.Or(every, DefaultPurgeEvery)
	if every < 0 || p.store == nil || p.opts.retention() < 0 {
		return
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return
	}
	log := p.opts.logger().With(slog.String("consumer", p.consumer))
	for wait := chance.N(min(every, firstPurge)); sleep.For(ctx, wait) == nil; wait = every - every/10 + chance.N(every/5) {
		n, err := p.all(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.LogAttrs(ctx, slog.LevelWarn, "cannot purge the inbox, will try again",
				slog.String("event", "inbox.purge"), slog.String("error", core.ErrorText(err)))
		case n > 0:
			log.LogAttrs(ctx, slog.LevelInfo, "inbox purged", slog.String("event", "inbox.purge"), slog.Int("marks", n))
		}
	}
}
