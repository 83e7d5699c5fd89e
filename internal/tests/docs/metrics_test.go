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
	eventName  = regexp.MustCompile(`(?:"event", |slog\.String\("event", |(?:warn|note)\([A-Za-z.]+, |event = |event, text = |slog\.Level[A-Za-z]+, )"([a-z_.]+)"|event := "([a-z_.]+)"|\.Event\([^"\n]*"([a-z_.]+)"`)
	ofEngines  = regexp.MustCompile(`/(relay|consumer|inbox|recurring|store|transport|internal/upkeep|cli|dashboard)/`)
	ofOthers   = regexp.MustCompile(`^(\.\./)+(examples|bench|internal/[a-tv-z])`)
	namedEvent = regexp.MustCompile(`event=([a-z_.]*[a-z_])`)
	metricName = regexp.MustCompile(`(\w+)\("((?:waybill\.(?:relay|consumer)|messaging\.(?:client|process))\.[a-z.]+[a-z])"`)
	// The attributes of spans are checked where the spans are made, with an exporter in memory.
	attributeName = regexp.MustCompile(`^(messaging\.(system|operation|destination|message|consumer|batch|rabbitmq)\b.*|server\.(address|port)|error\.type|waybill\.(attempt|route))$`)
)

// OP-03: every event of the log and every metric is explained in docs/metrics.md, and nothing else is. So are the
// attributes of spans and metrics.
func TestMetricsNamesEverything(t *testing.T) {
	t.Parallel()
	page := read(t, filepath.Join(root, "docs/metrics.md"))
	found := map[string]bool{}
	walk(t, func(path string) {
		path = filepath.ToSlash(path)
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || !ofEngines.MatchString(path) || ofOthers.MatchString(path) {
			return
		}
		source := read(t, path)
		for _, m := range eventName.FindAllStringSubmatch(source, -1) {
			found[m[1]+m[2]+m[3]] = true
		}
		if strings.Contains(path, "/dashboard/") {
			return // it reads metrics, and makes none
		}
		for _, m := range metricName.FindAllStringSubmatch(source, -1) {
			found[m[2]], found[prometheus(m[1], m[2])] = true, true
		}
	})
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/metrics.md does not explain %s", name)
		}
	}
	walk(t, func(path string) {
		if ext := filepath.Ext(path); ext != ".md" && ext != ".go" || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "CHANGELOG.md") {
			return
		}
		for _, m := range namedEvent.FindAllStringSubmatch(read(t, path), -1) {
			if !found[m[1]] {
				t.Errorf("%s names event %s, which is not found", path, m[1])
			}
		}
	})
	for _, m := range regexp.MustCompile("`([a-z]+(?:[._][a-z_]+)*)`").FindAllStringSubmatch(page, -1) {
		if name := m[1]; strings.ContainsAny(name, "._") && !found[name] && !attributeName.MatchString(name) {
			t.Errorf("docs/metrics.md explains %s, which is not found", name)
		}
	}
}

// prometheus returns the name that OpenTelemetry's exporter gives to an instrument, which a function of that name
// makes.
func prometheus(made, name string) string {
	name = strings.ReplaceAll(name, ".", "_")
	switch {
	case strings.Contains(strings.ToLower(made), "histogram"), strings.HasSuffix(name, "oldest_age"):
		return name + "_seconds"
	case made == "Float64Counter": // of seconds
		return name + "_seconds_total"
	case strings.HasSuffix(made, "Counter") && !strings.HasSuffix(made, "UpDownCounter"):
		return name + "_total"
	}
	return name
}
