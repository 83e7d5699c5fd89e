// Package listen lets a relay sleep until there may be something to do: it listens for notifications, looks for itself,
// and says in a sequence until when it sleeps, so that staging notifies sleepers only. It also keeps the lock that
// shows others that a process is there.
//
// # Guarantees
//
//   - What was staged after the latest read that [Waiter.Read] was told of ends a [Waiter.Wait]: at once if LISTEN
//     works, else within half a second. A message that was staged without a notification ends a long sleep within
//     20 s, or by [Waiter.Saw].
//   - A Wait ends when a record comes due that [Waiter.DueIn] was told of.
//   - While nothing happens, or each commit notifies, there are two queries a second. After half a minute without work
//     there are three in a minute, but two a second as long as LISTEN does not work, or a transaction is open that may
//     have staged.
//   - A relay that sleeps has said so without a gap: of a Stage that begins later, the commit notifies it.
//   - Behind a pooler that shares connections by transaction there is no LISTEN, which would stay with a session of
//     others. If the pooler is not recognised as such, a notification to itself does not arrive; after two of these
//     there is no more LISTEN either.
//   - The lock of [Waiter.Acquire] ends with its connection, and so with the process.
//
// # Concurrency
//
// One Wait at a time; everything else is safe for concurrent use.
//
// # Ownership
//
// A Waiter owns the connection that Wait opens, until its context ends or [Waiter.Close], and one for each Acquire,
// until its context ends.
//
// # Limits
//
// Behind a pooler that shares connections by transaction it polls, and there is no presence.
package listen
