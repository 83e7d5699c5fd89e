package tree_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A comment is easy to read if each sentence says of a named thing what that thing does. "The relay deletes a settled
// record" names two things; a clause in the place of either makes a reader guess. These tests count such lines.

// finished are the folders, with those below them, whose comments have nouns as subjects and objects. "." is the root
// package alone. A folder joins the list when its comments have been rewritten.
var finished = []string{
	".",
	"admin",
	"asyncapi",
	"bench",
	"cli",
	"cmd",
	"consumer",
	"contrib/gorm",
	"contrib/kafka",
	"contrib/nats",
	"contrib/mysql",
	"core",
	"dashboard",
	"dispatch",
	"examples",
	"health",
	"hlc",
	"inbox",
	"internal",
	"recurring",
	"relay",
	"store/memory",
	"store/mongo",
	"store/postgres",
	"store/sqlite",
	"transform",
	"transport/memory",
	"transport/rabbitmq",
	"transport/redisstreams",
	"transport/sqs",
	"transport/table",
	"waybilltest",
}

// mostVague is the part of the comment lines of a finished folder, in thousandths, that may have a clause or a pronoun
// in the place of a noun: questions, relative clauses that the expressions take for others, and quoted words.
const mostVague = 5

var (
	// vaguePronoun finds pronouns for a person or thing without a name.
	vaguePronoun = regexp.MustCompile(`(?:^|[^\w"` + "`" + `])(?:[Ww]hatever|[Ww]hoever|[Ww]hichever|[Nn]obody|[Ss]omebody|[Aa]nybody)(?:[^\w"` + "`" + `]|$)`)
	// vagueClause finds a clause as a subject, at the start of a sentence, or as an object, behind a verb or a
	// preposition.
	vagueClause = regexp.MustCompile(`(?i)(?:^|[.;:,(]\s*|\b(?:and|or|but|of|by|for|to|in|with|from|than|that|only|also|on|at|as|over|all|` +
		`lists?|shows?|says?|counts?|returns?|reports?|knows?|takes?|reads?|leaves?|keeps?|stores?|deletes?|finds?|gives?|sends?|holds?|needs?)\s+)` +
		`(?:what|who)\s+(?:are|were|have|had|can|must|may|did|the|an?|it|they|this|that|no|others?|would|will|should|comes?|came|goes|went|\w+ed|\w+s)\b`)
)

// vague reports whether a line of a comment has a clause or a pronoun where a noun should stand.
func vague(line string) bool {
	return vaguePronoun.MatchString(line) || vagueClause.MatchString(line)
}

// commentLines calls each with every line of text that is a comment alone, without its slashes. Directives and the
// heads of an example's output are not among them.
func commentLines(text []byte, each func(n int, line string)) {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		comment, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("//"))
		if !ok || bytes.HasPrefix(comment, []byte("go:")) || bytes.HasPrefix(comment, []byte("nolint")) ||
			bytes.HasPrefix(comment, []byte(" Output")) {
			continue
		}
		each(n, string(bytes.TrimSpace(comment)))
	}
}

func TestCommentsHaveNouns(t *testing.T) {
	t.Parallel()
	dir := root(t)
	for _, folder := range finished {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			lines, found := 0, []string(nil)
			err := filepath.WalkDir(filepath.Join(dir, folder), func(path string, d fs.DirEntry, err error) error {
				switch {
				case err != nil:
					return err
				case d.IsDir() && (d.Name() == "testdata" || folder == "." && path != dir):
					return fs.SkipDir
				case filepath.Ext(path) != ".go":
					return nil
				}
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				commentLines(text, func(n int, line string) {
					lines++
					if vague(line) {
						name, _ := filepath.Rel(dir, path)
						found = append(found, fmt.Sprintf("%s:%d: %s", name, n, line))
					}
				})
				return nil
			})
			if err != nil || lines == 0 {
				t.Fatalf("%d lines of comments were read: %v", lines, err)
			}
			// A small folder may have one such line.
			if most := max(1, lines*mostVague/1000); len(found) > most {
				t.Errorf("%d of %d lines have a clause or a pronoun where a noun should stand, at most %d: name the thing\n%s",
					len(found), lines, most, strings.Join(found, "\n"))
			}
		})
	}
}

// vaguePages is how many lines of README.md and docs/ there must be for one that has a clause or a pronoun where a noun
// should stand. A few are questions, or quotations.
const vaguePages = 100

func TestPagesHaveNouns(t *testing.T) {
	t.Parallel()
	dir := root(t)
	pages, err := filepath.Glob(filepath.Join(dir, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	all := 0
	for _, page := range append(pages, filepath.Join(dir, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		code := false
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "```"):
				code = !code
			case line != "" && !code:
				if all++; vague(line) {
					found = append(found, filepath.Base(page)+": "+line)
				}
			}
		}
	}
	if all < 1000 {
		t.Fatalf("only %d lines were read", all)
	}
	if len(found)*vaguePages > all {
		t.Errorf("%d of %d lines, more than one in %d: name the thing\n%s", len(found), all, vaguePages, strings.Join(found, "\n"))
	}
}

// TestTablesAreWhole: each table of a page begins with a header, and every row has as many cells. An empty line in a
// table makes text of the rows behind it.
func TestTablesAreWhole(t *testing.T) {
	t.Parallel()
	dir := root(t)
	pages, err := filepath.Glob(filepath.Join(dir, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	for _, page := range append(pages, filepath.Join(dir, "README.md"), filepath.Join(dir, "CONTRIBUTING.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		n, broken := brokenRows(string(text))
		tables += n
		for _, line := range broken {
			t.Errorf("%s:%d: a row without its table", filepath.Base(page), line)
		}
	}
	if tables < 100 {
		t.Errorf("only %d tables were found", tables)
	}
	if n, broken := brokenRows("| a | b |\n|---|---|\n| 1 | `x\\|y` |\n| 1 |\n\n| 2 | 2 |\n```\n| 3 |\n```\n"); n != 1 || !slices.Equal(broken, []int{4, 6}) {
		t.Errorf("%d tables, broken rows at %v", n, broken)
	}
}

// brokenRows returns how many tables the text has, and the lines of rows that belong to none.
func brokenRows(text string) (tables int, broken []int) {
	lines, code, cells := strings.Split(text, "\n"), false, 0
	count := func(line string) int { return strings.Count(line, "|") - strings.Count(line, `\|`) } // also in code
	for i, line := range lines {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		switch {
		case code || !strings.HasPrefix(line, "|"):
			cells = 0
		case cells == 0 && i+1 < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[i+1]), "|--"):
			tables++
			cells = count(line)
		case count(line) != cells:
			broken = append(broken, i+1)
		}
	}
	return tables, broken
}

func TestVagueLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"What is due goes first.":                 true,
		"It deletes what nobody can need.":        true,
		"the owner, whoever the owner is":         true,
		"Close ends a run; who waits is told.":    true,
		"It shows what a step would do.":          true,
		"The store says what was done.":           true,
		"What happens to a message that fails?":   true, // it cannot tell a question
		"A due record goes first.":                false,
		"Later the member who left returns.":      false,
		"It deletes marks that no process needs.": false,
		"`whatever` is a word":                    false,
		"So what follows is one transaction.":     false,
		"Somebody's row":                          true,
		"A name with nobody_in_it stays a name":   false,
		"See Options.AnyBody.":                    false,
	} {
		if got := vague(line); got != want {
			t.Errorf("%q: %t, want %t", line, got, want)
		}
	}
	lines := 0
	commentLines([]byte("//go:build x\n\n// one\nx := 1 // not alone\n\t// two\n//nolint:all // three\n"), func(int, string) { lines++ })
	if lines != 2 {
		t.Errorf("%d lines of comments were found, want 2", lines)
	}
}
