package docs_test

// A sentence of a page has a noun as its subject and its object. "What is due is told to whoever owns it" makes a
// reader guess two nouns; "the relay tells the owner of a due record" names them.

import (
	"regexp"
	"strings"
	"testing"
)

// vagueLinesOf is the bound: one line in so many may have a clause or a pronoun where a noun should stand. A few are
// questions, or quotations.
const vagueLinesOf = 100

var (
	vaguePronoun = regexp.MustCompile("(?i)(?:^|[^\\w`\"])(?:whatever|whoever|whichever|nobody|somebody|anybody)(?:$|[^\\w`\"])")
	vagueClause  = regexp.MustCompile(`(?i)(?:^|[.;:,(]\s*|\b(?:and|or|but|of|by|for|to|in|with|from|than|that|only|also|on|at|as|over|all|` +
		`lists?|shows?|says?|counts?|returns?|reports?|knows?|takes?|reads?|leaves?|keeps?|stores?|deletes?|finds?|gives?|sends?|holds?|needs?)\s+)` +
		`(?:what|who)\s+(?:is|are|was|were|has|have|had|can|must|may|does|did|the|an?|it|they|this|that|no|others?|would|will|should|\w+ed|\w+s)\b`)
)

// vague returns the lines of a page, outside of code, whose subject or object is a clause or a pronoun, and the number
// of all lines.
func vague(text string) (lines []string, all int) {
	code := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			code = !code
		case line == "" || code:
		default:
			all++
			if vaguePronoun.MatchString(line) || vagueClause.MatchString(line) {
				lines = append(lines, line)
			}
		}
	}
	return lines, all
}

func TestVagueLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"What is due is deleted.":                     true,
		"The store says what was done.":               true,
		"It is for whoever reads it; nobody does.":    true,
		"The store deletes due records.":              false,
		"What happens to a message that fails?":       true, // it cannot tell a question
		"The option `nobody` is a name.":              false,
		"Somewhat later the member who left returns.": false,
	} {
		if lines, _ := vague(line); (len(lines) > 0) != want {
			t.Errorf("%q is found: %t, want %t", line, len(lines) > 0, want)
		}
	}
	if lines, all := vague("one\n```\nwhoever\n```\n\ntwo"); len(lines) != 0 || all != 2 {
		t.Errorf("found %q in code, counted %d lines", lines, all)
	}
}

// At most one line of README.md and docs/ in a hundred has a clause or a pronoun where a noun should stand.
func TestPagesHaveNouns(t *testing.T) {
	t.Parallel()
	var found []string
	all := 0
	for _, path := range pages(t) {
		if !strings.HasPrefix(path, root+"/docs/") && path != root+"/README.md" {
			continue
		}
		lines, n := vague(read(t, path))
		for _, line := range lines {
			found = append(found, strings.TrimPrefix(path, root+"/")+": "+line)
		}
		all += n
	}
	if all < 1000 {
		t.Fatalf("only %d lines", all)
	}
	if len(found)*vagueLinesOf > all {
		t.Errorf("%d of %d lines, more than one in %d; write a noun:\n%s", len(found), all, vagueLinesOf, strings.Join(found, "\n"))
	}
	t.Logf("%d of %d lines", len(found), all)
}
