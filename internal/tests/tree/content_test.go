package tree_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// foreign matches names that belong to one machine: absolute paths of a person's folders, and hosts of package
// registries, which go and apt choose by themselves.
var foreign = regexp.MustCompile(`(^|[^\w./~-])/(root|home/\w+|Users/\w+|work)/|\b(proxy\.golang|registry\.npmjs|deb\.debian)\.org`)

// hints are in every match of foreign. To look for them first takes a twentieth of the time.
var hints = []string{"/root/", "/home/", "/Users/", "/work/", "proxy.golang", "registry.npmjs", "deb.debian"}

// mentions returns where text matches foreign.
func mentions(text []byte) [][]int {
	for _, hint := range hints {
		if bytes.Contains(text, []byte(hint)) {
			return foreign.FindAllIndex(text, -1)
		}
	}
	return nil
}

func TestNoFileMentionsAMachine(t *testing.T) {
	t.Parallel()
	dir := root(t)
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git checkout: %v", err)
	}
	checked := 0
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || bytes.IndexByte(b, 0) >= 0 || name == "internal/tests/tree/content_test.go" {
			continue // removed but not yet staged, or binary
		}
		checked++
		for _, at := range mentions(b) {
			t.Errorf("%s:%d mentions %s", name, 1+bytes.Count(b[:at[1]], []byte("\n")), bytes.TrimSpace(b[at[0]:at[1]]))
		}
	}
	if checked == 0 {
		t.Error("git lists no file")
	}
}

// TestCommentsAreNarrow: no comment reaches beyond column 120, where a tab is eight columns, and the code before the
// comment counts. Directives and the output of an example may.
func TestCommentsAreNarrow(t *testing.T) {
	t.Parallel()
	const widest = 120
	dir, checked := root(t), 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == ".cache"):
			return fs.SkipDir
		case filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, group := range file.Comments {
			output := false
			for _, c := range group.List {
				checked++
				output = output || strings.Contains(c.Text, "Output:") || strings.Contains(c.Text, "Unordered output:")
				if output || strings.HasPrefix(c.Text, "//nolint:") {
					continue
				}
				for n := files.Position(c.Pos()).Line; n <= files.Position(c.End()).Line; n++ {
					line := strings.ReplaceAll(lines[n-1], "\t", "        ")
					if wide := utf8.RuneCountInString(line); wide > widest {
						t.Errorf("%s:%d: a comment reaches column %d", path[len(dir)+1:], n, wide)
					}
				}
			}
		}
		return nil
	})
	if err != nil || checked == 0 {
		t.Errorf("%d comments were checked: %v", checked, err)
	}
}

func TestForeignMatches(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"see /home/anna/x": true, `"/root/.cache"`: true, "https://proxy.golang.org": true, "/work/main": true,
		"/Users/anna/x": true, "https://registry.npmjs.org": true, "https://deb.debian.org": true,
		"~/work/x": false, "examples/work/main.go": false, "/var/lib/postgresql": false, "$HOME/x": false, "/workers/1": false,
	} {
		if got := mentions([]byte(text)) != nil; got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// An action of a workflow is named by its commit: a tag can be moved to other code.
func TestActionsArePinned(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root(t), ".github", "workflows", "test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	pinned, found := regexp.MustCompile(`^- uses: [\w./-]+@[0-9a-f]{40} # v\S+$`), 0
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if !strings.Contains(line, "uses:") {
			continue
		}
		if found++; !pinned.MatchString(line) {
			t.Errorf("test.yml:%d: %s: name the commit, and the version behind it", n+1, line)
		}
	}
	if found == 0 {
		t.Error("no workflow uses an action")
	}
}

// An image is named by its digest, too: a tag can be moved to other content.
// The image of the Kubernetes example is the reader's own.
func TestImagesArePinned(t *testing.T) {
	t.Parallel()
	image := regexp.MustCompile(`^(?:image: |FROM )(\S+)`)
	pinned, own := regexp.MustCompile(`^[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}$`), "waybill:latest"
	for _, dir := range []string{".github", "deploy"} {
		found := 0
		err := filepath.WalkDir(filepath.Join(root(t), dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			for n, line := range strings.Split(string(text), "\n") {
				m := image.FindStringSubmatch(strings.TrimSpace(line))
				if m == nil || m[1] == own {
					continue
				}
				if found++; !pinned.MatchString(m[1]) {
					t.Errorf("%s:%d: %s: name the tag and the digest", path, n+1, m[1])
				}
			}
			return err
		})
		if err != nil || found == 0 {
			t.Errorf("%s: %d images were found: %v", dir, found, err)
		}
	}
}
