package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../../.."

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// TestSnippetsCompile checks that every Go snippet of the documentation is a piece of a file in examples/ or of an
// example test, which the build and the tests compile.
func TestSnippetsCompile(t *testing.T) {
	t.Parallel()
	var sources []string
	walk(t, func(path string) {
		if strings.HasSuffix(path, ".go") && (strings.Contains(path, "/examples/") || strings.HasSuffix(path, "_test.go")) {
			sources = append(sources, flat(read(t, path)))
		}
	})
	for _, page := range pages(t) {
		for i, m := range goBlock.FindAllStringSubmatch(read(t, page), -1) {
			for part := range strings.SplitSeq(m[1], "// …\n") { // an ellipsis stands for code left out
				if !containedInOne(sources, flat(part)) {
					t.Errorf("%s: Go snippet %d is not found in examples/ or in a test:\n%s", page, i+1, part)
				}
			}
		}
	}
}

var (
	link     = regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]*))?\)`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// TestLinksLeadSomewhere checks the relative links of the documentation: the file is there, and a page has the heading.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		text := goBlock.ReplaceAllString(read(t, page), "") // f[T](x) is no link
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads nowhere", page, m[1])
			} else if m[2] != "" && strings.HasSuffix(target, ".md") && !anchors(read(t, target))[m[2]] {
				t.Errorf("%s: the link %s#%s leads to no heading", page, m[1], m[2])
			}
		}
	}
}

// anchors returns the names that a forge gives to the headings of a page.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		name := noAnchor.ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}

// flat makes indentation and blank lines irrelevant.
func flat(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
	}
	return "\n" + strings.Join(lines, "\n") + "\n"
}

func containedInOne(sources []string, part string) bool {
	for _, s := range sources {
		if strings.Contains(s, part) {
			return true
		}
	}
	return strings.TrimSpace(part) == ""
}

func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	walk(t, func(path string) {
		if strings.HasSuffix(path, ".md") {
			out = append(out, path)
		}
	})
	return out
}

func walk(t *testing.T, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules") {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			visit(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
