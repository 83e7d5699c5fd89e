package recurring

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/sleep"
)

const (
	// look is how long a job sleeps at most: a clock that was put forward is noticed then.
	look = time.Minute
	// tryFor bounds one try to stage a tick.
	tryFor = 30 * time.Second
	// extraKeep is for how much longer than twice Late marks are kept.
	extraKeep = 24 * time.Hour
)

// retries are the pauses between tries to stage a tick.
var retries = waybill.Backoff{Base: 200 * time.Millisecond, Cap: 30 * time.Second, Attempts: -1}

// Options configures a Runner. The zero value is usable.
type Options struct {
	// Logger gets what happens; default slog.Default().
	Logger *slog.Logger
}

// Runner runs jobs; it is a [waybill.Runner].
type Runner struct{ jobs []*job }

// job is a Job that runs.
type job struct {
	Job
	schedule *schedule
	// stage marks a tick, and stages its message unless m is nil. It reports whether the mark is new.
	stage func(ctx context.Context, tick time.Time, m *waybill.Message) (bool, error)
	// purge deletes marks that no process can need any more, until ctx ends.
	purge func(ctx context.Context)
	log   *slog.Logger
}

// New returns a runner of jobs. marks begins the transactions, and keeps which ticks are done; outbox stages in them.
// Stores are both. Everything that is wrong is told at once, as a [waybill.ErrInvalid].
func New[Tx any](marks core.Inbox[Tx], outbox waybill.Stager[Tx], jobs []Job, opts Options) (*Runner, error) {
	schedules, p := problemsOf(jobs)
	if check.Nil(marks) {
		p = append(p, "marks: is nil; pass the store")
	}
	if check.Nil(outbox) {
		p = append(p, "outbox: is nil; pass the store")
	}
	if err := waybill.Invalid("waybill/recurring", p...); err != nil {
		return nil, err
	}
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	r := &Runner{}
	for i, j := range jobs {
		j.Late = cmp.Or(j.Late, DefaultLate)
		keep := inbox.Options{RedeliveryWindow: j.Late, Logger: opts.Logger}
		if _, ok := core.As[core.InboxPurger](marks); ok { // else they are kept for ever
			keep.Retention = 2*j.Late + extraKeep
		}
		box, err := inbox.New(marks, consumerPrefix+j.Name, keep)
		if err != nil {
			return nil, err
		}
		r.jobs = append(r.jobs, &job{
			Job: j, schedule: schedules[i], purge: box.RunPurge, log: opts.Logger.With("job", j.Name),
			stage: func(ctx context.Context, tick time.Time, m *waybill.Message) (bool, error) {
				key := core.InboxKey{Consumer: box.Consumer(), Source: j.Name, ID: tick.UTC().Format(time.RFC3339)}
				st, err := marks.Do(ctx, key, func(ctx context.Context, tx Tx) error {
					if m == nil {
						return nil
					}
					_, err := outbox.Stage(ctx, tx, *m)
					return err
				})
				return st == core.InboxNew, err
			},
		})
	}
	return r, nil
}

// Run stages ticks until ctx ends, and returns nil then. It returns no error: a failed tick is logged, and tried again.
func (r *Runner) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for _, j := range r.jobs {
		group.Go(func() { j.run(ctx) })
		group.Go(func() { j.purge(ctx) })
	}
	group.Wait()
	return nil
}

// run stages the ticks of one job.
func (j *job) run(ctx context.Context) {
	j.log.InfoContext(ctx, "recurring job started", "event", "recurring.start", "schedule", j.Schedule, "zone", j.schedule.zone.String(),
		"next", j.schedule.next(time.Now()))
	done := time.Now().Add(-j.Late).Add(-time.Nanosecond) // ticks up to here need no look
	if j.From.After(done) {
		done = j.From.Add(-time.Nanosecond)
	}
	failed := 0
	for ctx.Err() == nil {
		now := time.Now()
		done = j.drop(ctx, done, now)
		tick := j.schedule.next(done)
		if !j.All {
			if last := j.schedule.last(done, now); !last.IsZero() {
				tick = last
			}
		}
		if tick.IsZero() || tick.After(now) {
			wait := look
			if !tick.IsZero() {
				wait = min(wait, tick.Sub(now))
			}
			_ = sleep.For(ctx, wait)
			continue
		}
		err := j.try(ctx, tick)
		if err == nil {
			done, failed = tick, 0
			continue
		}
		failed++
		wait, _, _ := retries.Next(failed, err)
		// The last try is made before Late is over: an outage that ends shortly before costs no tick.
		wait = min(wait, max(time.Until(tick.Add(j.Late))/2, retries.Base))
		if ctx.Err() == nil {
			j.log.WarnContext(ctx, "a tick could not be staged; trying again", "event", "recurring.failed", "tick", tick, "error", core.ErrorText(err), "again_in", wait)
		}
		_ = sleep.For(ctx, wait)
	}
	j.log.InfoContext(ctx, "recurring job stopped", "event", "recurring.stop")
}

// drop gives up the ticks after done that are too late by now, and logs them. It returns done, or a later time: no tick
// up to it is left to stage.
func (j *job) drop(ctx context.Context, done, now time.Time) time.Time {
	oldest := now.Add(-j.Late).Add(-time.Nanosecond)
	if !oldest.After(done) {
		return done
	}
	if missed := j.schedule.next(done); !missed.IsZero() && !missed.After(oldest) {
		j.log.ErrorContext(ctx, "ticks were missed: this process could not stage them in time", "event", "recurring.missed", "first", missed, "late", j.Late)
	}
	return oldest
}

// try marks a tick and stages its message, unless the job is paused or another process has done it.
func (j *job) try(ctx context.Context, tick time.Time) (err error) {
	ctx, cancel := context.WithTimeout(ctx, tryFor)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a function of the job panicked: %v", p)
		}
	}()
	var message *waybill.Message
	paused := false
	if j.Paused != nil {
		if paused, err = j.Paused(ctx); err != nil {
			return fmt.Errorf("paused: %w", err)
		}
	}
	if !paused {
		m, err := j.Message(tick)
		if err != nil {
			return fmt.Errorf("message: %w", err)
		}
		message = &m
	}
	isNew, err := j.stage(ctx, tick, message)
	switch {
	case err != nil:
		return err
	case isNew && paused:
		j.log.InfoContext(ctx, "tick passed over: the job is paused", "event", "recurring.paused", "tick", tick)
	case isNew:
		j.log.DebugContext(ctx, "tick staged", "event", "recurring.staged", "tick", tick)
	}
	return nil
}
