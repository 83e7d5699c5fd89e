// Package statespace checks a small world exhaustively. A world is a Go value with everything in it: the code under
// test, the store, the clock, the messages under way. The search copies the world, lets each possible event happen in
// a copy of its own, and goes on from every world that it has not seen. So it meets every interleaving of a scope,
// where a random model meets some.
//
//	model := statespace.NewModel(rules)
//	space := statespace.Space[world, event]{Model: model, Start: …, Events: …, Do: …}
//	result := space.Search(limit)
//
// # Guarantees
//
// A copy shares nothing with its original that the rules do not name. Two worlds that differ in a field have different
// hashes, unless the rules name the field. A field that can neither be hashed nor is named makes [NewModel] fail. So
// does a name that fits no field. A new field cannot be forgotten.
//
// # Concurrency
//
// A Model is safe for concurrent use after NewModel. A search belongs to one goroutine.
//
// # Limits
//
// A hash has 64 bits: of 10 million worlds one pair collides with a probability of 1 in 400,000. Slices are copied one
// by one, so that two slices of one array are apart in a copy. A pointer into the middle of another value is copied as
// a value of its own.
package statespace
