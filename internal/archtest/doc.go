// Package archtest holds tests of the tree as a whole: who may import whom, what no file may contain, and how the
// engines are built. It has no other code.
package archtest
