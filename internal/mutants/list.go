package main

import "slices"

// mutant is one fault: a text that stands once in a file, and its replacement.
type mutant struct {
	id    string
	fault string // in words
	file  string // from the root of the tree, with slashes
	old   string
	new   string
	tests string // what go test -run gets; empty: all of the package
	group
}

// group is what mutants have in common.
type group struct {
	pkg    string   // whose tests must notice
	args   []string // of the tests
	server bool     // they need Postgres or RabbitMQ
	gated  bool     // they do not run without the mutant first: every gate does that
	slow   bool     // they take minutes: the gate's sample leaves them out
	spare  bool     // other lines guard the same, so they may survive
}

// of puts mutants into a group.
func (g group) of(all ...mutant) []mutant {
	for i := range all {
		all[i].group = g
	}
	return all
}

// list returns all mutants.
func list() []mutant {
	return slices.Concat(
		root(), decided(), relay(), dispatched(), ruled(), consumed(), inboxed(), tabled(), scheduled(), transformed(), postgresql(), sqlite(),
		remembered(), mongodb(), rabbit(), redis(), queued(), contributed(), histories(), shown(), commanded(), tested(), spares(),
	)
}
