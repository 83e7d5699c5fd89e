// Package docs keeps the documentation true: its tests check that every Go snippet in README.md and docs/ stands word
// for word in a file that compiles, that links lead somewhere, and that docs/options.md says what the code says.
package docs
