// Package tree holds tests of the tree as a whole: the imports that each package may have, the texts that no file
// may contain, the build of the engines, and the prose of comments. It has no other code.
package tree
