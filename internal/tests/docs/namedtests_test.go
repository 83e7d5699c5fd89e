package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest = regexp.MustCompile("`(Test[A-Z]\\w*)`")
	testFunc  = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	// namedCheck is a check of a conformance suite, as pages name it: three words and more.
	namedCheck = regexp.MustCompile("`([a-z]+(?:-[a-z]+){2,})`")
	suiteCheck = regexp.MustCompile(`(?m)^\s*\{(?:name: )?"([a-z]+(?:-[a-z0-9]+)+)", `)
)

// A page that says which test shows something names a test that is there. The security page names checks of a
// conformance suite, too.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	tests, checks := map[string]bool{}, map[string]bool{}
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		text := read(t, path)
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
				tests[m[1]] = true
			}
		} else if strings.Contains(path, "/core/") {
			for _, m := range suiteCheck.FindAllStringSubmatch(text, -1) {
				checks[m[1]] = true
			}
		}
	})
	found := 0
	for _, page := range pages(t) {
		text := read(t, page)
		for _, m := range namedTest.FindAllStringSubmatch(text, -1) {
			if found++; !tests[m[1]] {
				t.Errorf("%s names %s, which is no test", page, m[1])
			}
		}
		if !strings.HasSuffix(page, "docs/security.md") {
			continue
		}
		for _, m := range namedCheck.FindAllStringSubmatch(text, -1) {
			if found++; !checks[m[1]] {
				t.Errorf("%s names %s, which is no check of a conformance suite", page, m[1])
			}
		}
	}
	if found < 40 || len(tests) < 1000 || len(checks) < 100 {
		t.Errorf("%d names on pages, %d tests, %d checks", found, len(tests), len(checks))
	}
}
