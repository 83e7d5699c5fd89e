package docs_test

// A reader finds a page by the map in docs/README.md, and a package by the picture there. A page or a package that is
// missing there is not found.

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	mapPage   = root + "/docs/README.md"
	mostPages = 5 // that a reader is asked to read in order
	mostTerms = 45
)

var (
	packageLine = regexp.MustCompile(`(?m)^ +(\S+) +(\S.*)$`)
	mapLink     = regexp.MustCompile(`\]\(([a-z-]+\.md)\)`)
	stepRow     = regexp.MustCompile(`(?m)^\| \d+ \|`)
)

// Each page of docs/ is in the table of all pages, and no reader is asked to read more than five in order.
func TestMapHasEachPage(t *testing.T) {
	t.Parallel()
	text := read(t, mapPage)
	way, table, ok := strings.Cut(text, "\n## All pages\n")
	table, _, found := strings.Cut(table, "\n## ")
	if !ok || !found {
		t.Fatal("the map has no section of all pages")
	}
	if n := len(stepRow.FindAllString(way, -1)); n < 1 || n > mostPages {
		t.Errorf("the ways of the readers have %d steps, want 1 to %d", n, mostPages)
	}
	listed := map[string]bool{}
	for _, m := range mapLink.FindAllStringSubmatch(table, -1) {
		if listed[m[1]] {
			t.Errorf("%s is there twice", m[1])
		}
		listed[m[1]] = true
	}
	all, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(all) < 2 {
		t.Fatalf("%d pages, %v", len(all), err)
	}
	for _, path := range all {
		if name := filepath.Base(path); name != "README.md" && !listed[name] {
			t.Errorf("docs/%s is not in the map", name)
		}
	}
}

// A reader can hold the words of the glossary in mind, and each is there once.
func TestGlossaryIsShort(t *testing.T) {
	t.Parallel()
	terms := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(read(t, root+"/docs/glossary.md"), -1) {
		if m[1] == "term" {
			continue
		}
		if terms[m[1]] {
			t.Errorf("%q has two meanings", m[1])
		}
		terms[m[1]] = true
	}
	if n := len(terms); n < 20 || n > mostTerms {
		t.Errorf("%d terms, want 20 to %d", n, mostTerms)
	}
}

// Each package, and each module, has a line with a sentence in the picture, and the picture names no other one. The
// internal packages of another package are not drawn.
func TestPictureHasEachPackage(t *testing.T) {
	t.Parallel()
	_, text, _ := strings.Cut(read(t, mapPage), "\n## The packages\n")
	_, picture, _ := strings.Cut(text, "```\n")
	picture, _, _ = strings.Cut(picture, "```")
	drawn := map[string]bool{}
	for _, m := range packageLine.FindAllStringSubmatch(picture, -1) {
		if drawn[m[1]] {
			t.Errorf("%s is drawn twice", m[1])
		}
		drawn[m[1]] = true
	}
	there := packages(t)
	for path := range there {
		if !drawn[path] {
			t.Errorf("the picture lacks package %s", path)
		}
	}
	for path := range drawn {
		if !there[path] {
			t.Errorf("the picture shows %s, which is no package", path)
		}
	}
}

// packages returns the folders with Go files below the root, and of other modules only the root.
func packages(t *testing.T) map[string]bool {
	t.Helper()
	there, modules := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		name := d.Name()
		switch dir := filepath.ToSlash(filepath.Dir(rel)); {
		case err != nil:
			return err
		case d.IsDir() && rel != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules"),
			d.IsDir() && strings.Contains(filepath.ToSlash(rel), "/internal"):
			return fs.SkipDir
		case name == "go.mod":
			modules[dir] = true
		case strings.HasSuffix(name, ".go"):
			there[dir] = true
		}
		return nil
	})
	if err != nil || len(there) == 0 {
		t.Fatalf("%d packages, %v", len(there), err)
	}
	for path := range there {
		for m := range modules {
			if m != "." && strings.HasPrefix(path, m+"/") {
				delete(there, path)
			}
		}
	}
	return there
}
