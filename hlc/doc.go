// Package hlc is the hybrid logical clock of Waybill: a clock whose stamps stay
// close to wall time and never contradict cause and effect.
//
// The algorithm is that of Kulkarni, Demirbas, Madappa, Avva and Leone, "Logical
// Physical Clocks" (2014). A stamp is 48 bits of milliseconds and 16 bits of
// counter in one int64. A clock takes the larger of the wall clock and its own
// last stamp plus one; on receipt of a message it takes the stamp of the message
// into that maximum as well. So a stamp reads as a time, fits a bigint column,
// sorts as a number, as text and as bytes, and a reaction is always stamped
// later than its cause.
//
// # Why
//
// Two replicas never agree about the time. If replica A stages an order at
// 10:00:00.050 by its clock, and replica B, 80 ms behind, reacts to it at
// 10:00:00.010 by its own, then sorting by wall time puts the effect before the
// cause. With this package B observes the stamp of A before it stages its
// reaction, and its next stamp is above it. No process waits, and none asks a
// server for the time.
//
// # Guarantees
//
//   - Now is strictly monotonic on one clock, over all goroutines, with any
//     wall clock: that can stop, jump back, jump forward, or read nonsense.
//   - The result of Observe(remote) is above remote and above everything the
//     clock gave out before. Everything the clock gives out later is above that.
//   - A stamp further ahead of the wall clock than Options.MaxDrift is refused.
//     A refused stamp moves nothing and is counted. The bound is measured from
//     the wall clock, not from the last stamp, so a sender cannot walk the clock
//     forward in small steps.
//   - After Seed(mark) without an error, and after NewClock with
//     Options.Floor = mark, every stamp is above mark. That is how a clock
//     continues after a restart. SeedCapped takes a mark that is too far ahead
//     for the furthest one that it can be.
//   - Text and bytes order as the numbers do, and each stamp has exactly one
//     text and one binary form.
//   - Nothing here exits the process, and no input makes it panic. There is no
//     variant of Observe without the check.
//
// # Which channels carry stamps
//
// The guarantee about causes reaches as far as stamps travel. In Waybill they
// travel on three channels:
//
//  1. In the envelope of every staged message (the CloudEvents extension hlc):
//     stamped with Now at staging, merged with Observe at receipt, before the
//     handler runs. The reactions of the handler are therefore stamped later.
//  2. In the outbox, as the stamps of its records, and as a mark that is written
//     when records are settled. Both are read at start and given to Seed.
//  3. In memory: everything in one process should share one Clock. Two clocks in
//     one process know nothing of each other.
//
// A cause that travels by any other way is invisible: a direct call between two
// services, a row that both replicas write in turn, a person who reads one
// screen and types into another. Two such events can be stamped in either order.
// Send the stamp along with the call and Observe it there, or order by something
// that both sides really pass through. This is why Waybill orders the records of
// one store by the sequence of the store and not by stamps.
//
// # Hazards that remain
//
// The wall clock jumps forward, and back. The clock follows a jump of its own
// wall clock forward, since it cannot know that it is wrong: a machine resumed
// from sleep looks the same. When the wall clock comes back, the clock does not.
// It stays ahead and counts on in the counter bits, for a year if it must, and
// every stamp stays in order. The stamps are then less close to real time, and
// others refuse them as drift. Clock.Ahead reports the distance; it shrinks as
// real time passes. Watch it: anything above a second or two means
// that a wall clock was wrong, or that a fast peer is pulling. To end it
// sooner, correct the wall clocks, delete the mark and the stamps that carry
// the wrong year, and restart. Order across that restart is lost, which is why
// nothing here does it by itself. A wall clock that reads before 1970 or
// after about 6394 is not believed and not followed at all.
//
// The wall clock is slow. A clock that is behind by more than MaxDrift refuses
// the good stamps of everybody else, and Clock.Rejected rises. The error names
// both times. Messages whose stamp was refused lose the guarantee that the
// reaction is stamped later; nothing else about them changes.
//
// The stamp is far ahead, but the clock already is as well. A stamp at or below
// the clock's reading is accepted however far it is from the wall clock,
// because it cannot move the clock anywhere. A process that is a year ahead
// thus still orders its own messages.
//
// A mark from the future. A database restored from a machine with a wrong clock,
// or a mark written by hand, could otherwise send the clock away for good. Seed
// and Options.Floor refuse it with the same bound and the same error as Observe.
// Then issue no stamps: fix the wall clock and try again, wait until time
// catches up (DriftError.Ahead less the bound), raise MaxDrift, or drop the
// mark as wrong. SeedCapped goes on at the bound: the stamps rise within the
// process, and can be below those of other processes that follow the mark.
// The stores remember no stamp that is further ahead of their own clock than
// DefaultMaxDrift, so that one wrong machine does not become the mark of all.
//
// A mark that is too low. Seed promises "above the mark", no more. Stamps that
// were given out but left no trace in the store before a crash can be given
// out again if the wall clock went back meanwhile.
//
// The bound is too small or too large. Below the real difference between your
// machines' clocks, good stamps are refused. A large one lets one wrong machine
// pull everybody ahead by as much. The default of a minute is far above the
// error that NTP leaves and far below a harmful one. With the bound off, one
// forged stamp puts every clock that hears it at the end of time.
//
// # Concurrency
//
// A Clock is safe for concurrent use by any number of goroutines. All methods
// are free of locks: a compare-and-swap on one word, repeated on contention.
// Now and an accepted Observe allocate nothing. Options.Wall is called from many
// goroutines at once and must be safe for that. Timestamp is a plain value.
//
// # Ownership
//
// A Clock owns no goroutine, timer, file or connection and needs no Close. It
// stores nothing: a program with a store persists Clock.Last and seeds the clock
// from it. A Clock must not be copied after first use. Marshalling returns fresh
// slices; unmarshalling keeps no reference to its input.
//
// # Limits
//
//   - Stamps are not unique across clocks. Two replicas can give out the same
//     stamp for unrelated events; break ties with an id or a sequence.
//   - A lower stamp does not mean an earlier cause. Unrelated events are ordered
//     too, by nothing more than their clocks.
//   - The sign bit stays free so that stamps sort in a signed column. That leaves
//     47 bits: the last millisecond is MaxMillis, in the year 6429. A clock
//     refuses to be moved into the last 35 years of that, so that it always has
//     room to count on.
//   - More than 65,536 stamps in one millisecond carry into the milliseconds.
//     The clock then runs ahead of wall time until the rate falls.
//   - Resolution is one millisecond. Stamps do not measure durations.
package hlc
