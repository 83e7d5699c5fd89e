package config

import (
	"fmt"
	"slices"
)

// Diff returns the paths of the settings that differ, such as relays.shop.window. It compares the texts of the sources:
// a default that is written out differs from one that is not. Of files with secrets it compares the names.
func Diff(a, b *Loaded) []string {
	var paths []string
	compare(a.root, b.root, "", &paths)
	return paths
}

func compare(a, b *node, path string, paths *[]string) {
	if a == nil || b == nil || a.kind != b.kind || a.text != b.text {
		if a != b {
			onlyOne(a, b, path, paths)
		}
		return
	}
	for i := range max(len(a.items), len(b.items)) {
		compare(nth(a, i), nth(b, i), fmt.Sprintf("%s[%d]", path, i), paths)
	}
	for _, key := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.keys, b.keys)))) {
		compare(a.fields[key], b.fields[key], join(path, key), paths)
	}
}

// onlyOne adds the settings that one side alone has.
func onlyOne(a, b *node, path string, paths *[]string) {
	for _, n := range []*node{a, b} {
		if n == nil || a != nil && b != nil {
			continue
		}
		if n.kind == dict && len(n.keys) > 0 {
			for _, key := range n.keys {
				onlyOne(n.fields[key], nil, join(path, key), paths)
			}
			return
		}
		if n.kind == list && len(n.items) > 0 && !slices.ContainsFunc(n.items, func(i *node) bool { return i.kind != dict }) {
			for i, item := range n.items {
				onlyOne(item, nil, fmt.Sprintf("%s[%d]", path, i), paths)
			}
			return
		}
	}
	*paths = append(*paths, path)
}

func nth(n *node, i int) *node {
	if i < len(n.items) {
		return n.items[i]
	}
	return nil
}
