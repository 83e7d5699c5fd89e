// Package recurring stages messages at regular times: each tick of a cron schedule once, however many processes run it.
//
//	jobs, err := recurring.New(store, store, []recurring.Job{{
//		Name: "nightly-report", Schedule: "30 3 * * *", Location: berlin,
//		Message: func(tick time.Time) (waybill.Message, error) {
//			return ReportDue.Message(Report{Day: tick}), nil
//		},
//	}}, recurring.Options{})
//	err = waybill.Run(ctx, relay, jobs)
//
// # Guarantees
//
//   - A tick's message is staged at most once. The inbox mark of the tick and the message are one transaction. So it
//     does not matter how many processes run the same jobs, when they die, or how their clocks differ.
//   - It is staged exactly once if some process runs at the tick with a database that answers. If one does so only
//     within Job.Late after it, Job.All says whether every tick is made up for, or only the latest. A process logs the
//     ticks that it could not stage in that time.
//   - A database outage delays ticks: they are tried again until Job.Late has passed.
//   - A time of day that the zone's clock skips runs right after the skip, and one that comes twice runs the first
//     time. Schedules whose hour is * run on in real time.
//
// # Concurrency
//
// A Runner runs once at a time. The functions of different jobs are called at the same time, those of one job are not.
//
// # Ownership
//
// A Runner closes nothing. It keeps a copy of the jobs.
//
// # Limits
//
// A tick is a minute. The staged message goes the way of any message: the relay publishes it as soon as it can, and a
// consumer handles it. Marks are kept for twice Job.Late and a day more, by the database's clock, and deleted after
// that. Do not delete those of the consumer names recurring/* sooner: a process whose clock is far behind would stage a
// tick again. Work that goes on by its own result, rather than by the clock, needs a timer: see docs/scheduling.md.
package recurring
