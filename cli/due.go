package cli

import (
	"context"
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/relay"
)

const dueHelp = "also those that are due: the relay that owns them ends them, or this command if none runs"

// ended is what became of records that were to be ended.
type ended struct {
	Matched int `json:"matched"`
	Ended   int `json:"ended"`
	Deleted int `json:"deleted"`
	// Otherwise were published meanwhile, or ended for another reason. Locked are in an open transaction. Pending
	// are decided, and their relay has not carried it out yet.
	Otherwise int  `json:"otherwise"`
	Locked    int  `json:"locked"`
	Pending   int  `json:"pending"`
	DryRun    bool `json:"dry_run,omitempty"`
}

// endOptions show the progress, and bound how long relays may do nothing. The records that matched so far are no total:
// the next step finds more.
func (c *command) endOptions(show *progress) admin.TerminateOptions {
	return admin.TerminateOptions{Wait: c.timeout, Progress: func(sum admin.TerminateResult) { show.at("ended", int64(sum.Ended), 0) }}
}

// withoutDead calls fn, and removes relays that were killed meanwhile: they would never do what they are told. If fn
// ends earlier, they stay. With again, and if fn returns waybill.ErrInFlight, it goes on with that until ctx ends, and
// calls again if some are gone.
func withoutDead(ctx context.Context, s *Store, fn, again func() error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	removed := make(chan int, 1)
	go func() {
		gone, _ := relay.RemoveDead(ctx, s.Outbox) // fn meets the same errors
		removed <- gone
	}()
	err := fn()
	waits := again != nil && errors.Is(err, waybill.ErrInFlight)
	if !waits {
		stop()
	}
	if gone := <-removed; waits && gone > 0 {
		return again()
	}
	return err
}

// endDue calls end, beside the removal of killed relays unless in a dry run.
func endDue(ctx context.Context, s *Store, dryRun bool, end func() error) error {
	if dryRun {
		return end()
	}
	return withoutDead(ctx, s, end, nil)
}

// cancelDue ends the records that f selects, due ones included, and keeps them with reason skipped.
func (c *command) cancelDue(ctx context.Context, s *Store, f admin.Filter, dryRun bool) error {
	store, err := able[admin.Terminator](s.Outbox, "store", "end messages that are due")
	if err != nil {
		return err
	}
	if !dryRun {
		if err := c.confirm(ctx, "end all messages that match, which are never sent then"); err != nil {
			return err
		}
	}
	show := c.newProgress().dryRun(dryRun)
	var sum admin.TerminateResult
	err = c.act(ctx, dryRun, func(ctx context.Context) error {
		err := endDue(ctx, s, dryRun, func() (err error) {
			sum, err = admin.DecideAll(ctx, store, admin.TerminateRequest{Filter: f, Reason: waybill.ReasonSkipped, DryRun: dryRun}, c.endOptions(show))
			return err
		})
		c.note("%d of %d ended", sum.Ended, sum.Matched)
		return err
	})
	show.end()
	return c.showEnded(ended{sum.Matched, sum.Ended, 0, sum.Otherwise, sum.Locked, sum.Pending, dryRun}, err)
}

// purgeDue deletes the records that req selects, due ones included.
func (c *command) purgeDue(ctx context.Context, s *Store, req admin.PurgeRequest) error {
	store, err := able[purgeTerminator](s.Outbox, "store", "delete messages that are due")
	if err != nil {
		return err
	}
	if len(req.Filter.States)+len(req.Filter.Reasons) > 0 {
		return withCode(ExitUsage, "--due: leave --state and --reason out: it deletes what matches in any state")
	}
	if !req.DryRun {
		if err := c.confirm(ctx, "delete all records that match for good, those that are not sent yet included"); err != nil {
			return err
		}
	}
	show := c.newProgress().dryRun(req.DryRun)
	var sum admin.PurgeResult
	err = c.act(ctx, req.DryRun, func(ctx context.Context) error {
		err := endDue(ctx, s, req.DryRun, func() (err error) {
			sum, err = admin.PurgeAll(ctx, store, req, c.endOptions(show))
			return err
		})
		c.note("%d ended, %d deleted", sum.Ended.Ended, sum.Purged.Deleted)
		return err
	})
	show.end()
	return c.showEnded(ended{
		max(sum.Ended.Matched, sum.Purged.Matched), sum.Ended.Ended, sum.Purged.Deleted, sum.Ended.Otherwise, sum.Ended.Locked, sum.Ended.Pending, req.DryRun,
	}, err)
}

// showEnded shows out, even after an error, and counts the records that are left.
func (c *command) showEnded(out ended, failed error) error {
	if c.json {
		if err := c.writeJSON(out); err != nil {
			return err
		}
	} else {
		say(c.io.Out, "%s matched: %s ended, %s deleted, %s published or ended otherwise, %s locked, %s pending\n", records(out.Matched),
			grouped(int64(out.Ended)), grouped(int64(out.Deleted)), grouped(int64(out.Otherwise)), grouped(int64(out.Locked)), grouped(int64(out.Pending)))
	}
	switch {
	case failed != nil:
		return failed
	case out.Pending > 0:
		return withCode(ExitRefused, "%s decided about, and not carried out by their relay yet: that stands; look again later", records(out.Pending))
	case out.Locked > 0:
		return withCode(ExitRefused, "%s locked by a transaction: repeat it", records(out.Locked))
	}
	return nil
}

// purgeTerminator ends records, and deletes them.
type purgeTerminator interface {
	admin.Terminator
	admin.Purger
}
