// Command nightly runs what takes too long for the gate, and ends with one table:
//
//	make nightly             # 90 minutes and more
//	make nightly HOURS=8     # the same, then the random part again and again until the time is over
//	make nightly ONLY=race   # only the steps whose name contains this
//
// A step is one command. Those of the first part run once: all tests of all modules, the nightly ones included, with
// the race detector; the suites on newer servers; every store with every transport; every interleaving of small worlds;
// a sixth of the mutants and of the fuzz targets, another each night, or all of them from HOURS=4 on. Those of the
// second part are random and repeat: long histories over real servers of both versions, servers that are killed under
// load, bad days, the orders example under chaos.
//
// # Guarantees
//
// Every step runs at least once, however short the time. A step that fails does not end the run: its output is kept,
// and the table names the file and the command that repeats the step. A failed random test prints its seed there. The
// exit code is 1 if a step failed.
//
// # Concurrency
//
// One step at a time: some of them count seconds, and the machine is theirs.
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
