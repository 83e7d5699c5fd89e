// Command soak repeats what takes too long for every run of the tests: long random histories over real servers of both
// versions, servers killed under load, bad days, the orders example under chaos. It ends with one table:
//
//	make soak SOAK=1h
//
// # Guarantees
//
// Every step runs at least once, however short the time. A step that fails does not end the run: its output is kept,
// the table names the file, and the exit code is 1.
//
// # Concurrency
//
// One step at a time: they count seconds, and the machine is theirs.
//
// # Ownership
//
// Steps are processes in a group of their own, which ends with the run. Ctrl-C ends the step, and the table is printed.
//
// # Limits
//
// Steps with newer servers need -newer, the root file system that scripts/newer prints. Without it the table says that
// they did not run.
package main
