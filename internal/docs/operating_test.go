package docs_test

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	eventName  = regexp.MustCompile(`(?:"event", |slog\.String\("event", |warn\([A-Za-z.]+, |event = |event, text = |slog\.Level[A-Za-z]+, )"([a-z_.]+)"|event := "([a-z_]+)"`)
	ofEngines  = regexp.MustCompile(`/(relay|consumer|inbox|store|transport)/`)
	ofOthers   = regexp.MustCompile(`^(\.\./)+(examples|bench|internal)/`)
	metricName = regexp.MustCompile(`"((?:waybill\.(?:relay|consumer)|messaging\.(?:client|process))\.[a-z.]+[a-z])"`)
)

// OP-03: every event of the log and every metric is explained in docs/operating.md, and nothing else is.
func TestOperatingNamesEverything(t *testing.T) {
	t.Parallel()
	page := read(t, filepath.Join(root, "docs/operating.md"))
	found := map[string]bool{}
	walk(t, func(path string) {
		path = filepath.ToSlash(path)
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || !ofEngines.MatchString(path) || ofOthers.MatchString(path) {
			return
		}
		source := read(t, path)
		for _, m := range eventName.FindAllStringSubmatch(source, -1) {
			found[m[1]+m[2]] = true
		}
		for _, m := range metricName.FindAllStringSubmatch(source, -1) {
			found[m[1]] = true
		}
	})
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/operating.md does not explain %s", name)
		}
	}
	for _, m := range regexp.MustCompile("`([a-z]+(?:[._][a-z_]+)*)`").FindAllStringSubmatch(page, -1) {
		if name := m[1]; strings.ContainsAny(name, "._") && !found[name] && name != "left_out" {
			t.Errorf("docs/operating.md explains %s, which is not found", name)
		}
	}
}
