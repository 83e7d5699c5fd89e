// Package archtest holds tests of the tree as a whole: who may import whom, and what no file may contain. It has no
// other code.
package archtest
