// Command mutants breaks the code on purpose, in one place at a time, and runs the tests that must notice:
//
//	make mutants                # all of them; writes internal/mutants/RESULTS.md
//	make mutants MUTANTS=relay- # those whose id matches; the others keep their lines on that page
//	go run ./internal/mutants -part 2/6 # every sixth, from the second on: a night of `make nightly` runs them
//
// A mutant is a text that stands once in a file, and its replacement. The list is in the files list_*.go. A new one
// needs no more than a line there; a line that names no test pattern runs the whole package and shows the tests that
// kill it. Then the line gets the narrowest pattern that kills it, down to one check of a suite.
//
// All of them take about an hour on two cores without other work, and two hours beside some: 5 to 10 s each, most of it
// for the compiler and the linker, half a minute for each that only explored worlds notice, and some minutes for each
// that is spare. The page is written after each.
//
// # Guarantees
//
// No file of the tree is changed: the compiler gets the mutated one through an overlay. (A rapid test that fails leaves
// its case in testdata/rapid: delete it.) The tests of a package run first without a mutant, all in one go, so that a
// test that fails anyway kills nothing. The exit code is 1 if a mutant survived, did not build, hung, or is not to be
// found in its file. A mutant that is marked spare may survive: other lines guard the same. One whose test ends at the
// limit of go test is marked hung: the test has noticed, or the machine is slow. The two cannot be told apart.
//
// The tests of a module of its own run in its folder. They all wait as long as on an idle machine (internal/patience),
// unless the environment says otherwise.
//
// # Concurrency
//
// Several mutants run at a time, as many as -j says. One that needs a server runs alone.
//
// # Ownership
//
// Every run of the tests is a process group of its own. It ends at its time limit, or with the command.
//
// # Limits
//
// A mutant whose tests need a server needs one here, too: run the command under internal/testenv/testservers, as make
// does.
package main
