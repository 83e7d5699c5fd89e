// Package docs keeps the documentation true: its tests check that every Go snippet in README.md and docs/ stands word
// for word in a file that compiles, that links have targets, and that docs/options.md agrees with the code.
package docs
