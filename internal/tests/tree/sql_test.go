package tree_test

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
)

// repeated finds parts of the contract that a statement repeats: numbers of states, control kinds, block reasons,
// answers and crashes where they stand, and quoted reasons. Package sqltext has places for them.
func repeated() *regexp.Regexp {
	words := make([]string, 0, len(waybill.Reasons()))
	for _, r := range waybill.Reasons() {
		words = append(words, regexp.QuoteMeta(string(r)))
	}
	return regexp.MustCompile(`\bstate\s*(=|<>|!=|IN|NOT IN)\s*\(?\s*[0-9]` +
		`|\b(status|kind|why)\s*(=|<>|!=|IN|NOT IN)\s*\(?\s*[1-9]` +
		`|\breason\s*(=|<>|!=|NOT IN \(|IN \()\s*'[a-z]` +
		`|'(` + strings.Join(words, "|") + `)'` +
		`|notices\}? \([^)]*\)\s+\(*(SELECT (DISTINCT ON \([^)]*\) )?|VALUES \()[1-9]` +
		`|crashes\s*(>=?|<=?|=)\s*[1-9]` +
		`|(THEN|ELSE) [1-9][^0-9].*AS (status|why|state)\b`)
}

// TestSQLRepeatsNoRule: packages core and waybill alone decide about the numbers of states, and about the reasons that
// block a key. The check leaves out files with migrations: each store compares its own with today's contract.
func TestSQLRepeatsNoRule(t *testing.T) {
	t.Parallel()
	pattern := repeated()
	for store, dirs := range map[string][]string{
		"store/sqlite":   {"store/sqlite"},
		"store/postgres": {"store/postgres", "store/postgres/internal/*"},
	} {
		texts, statements := 0, 0
		for _, dir := range dirs {
			for _, file := range sources(t, dir) {
				ast.Inspect(file, func(n ast.Node) bool {
					lit, ok := n.(*ast.BasicLit)
					if !ok || lit.Kind != token.STRING {
						return true
					}
					text, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					texts++
					if strings.HasPrefix(lit.Value, "`") {
						statements++
					}
					if bad := pattern.FindString(text); bad != "" {
						t.Errorf("%s: %q repeats %q: use a place of package sqltext", store, text, bad)
					}
					return true
				})
			}
		}
		if texts < 100 || statements < 50 {
			t.Errorf("%s: only %d texts were checked, %d of them in backquotes", store, texts, statements)
		}
	}
}

// The pattern must be able to fail.
func TestRepeatedMatches(t *testing.T) {
	t.Parallel()
	pattern := repeated()
	for text, want := range map[string]bool{
		"WHERE r.state = 4": true, "state IN (1, 4)": true, "state NOT IN ( 3 )": true,
		"SET state = 5, reason = ''": true, "u.state = 3": true, "l.state IN (3, 5)": true, "l.state NOT IN (1": true,
		"o.reason NOT IN ('cancelled', 'x')": true, "reason = 'expired'": true, "f.status <> 3": true, "c.kind = 4": true,
		"'set_aside'": true, "INSERT INTO {notices} (kind, route)\n    SELECT 1, u.route": true,
		"INSERT INTO {notices} (kind)\n    (SELECT DISTINCT ON (u.key) 1, u.route": true, "o.crashes >= 10": true,
		"INSERT INTO waybill_outbox_notices (kind, route) VALUES (1, ?2)": true,
		"CASE WHEN r.retry THEN 1 END AS why":                             true,
		"state = {failed}":                                                false, "reason = {expired}": false, "state = ?2": false, "estate = 4": false,
		"state = {abandoned}, reason = {expired}": false, "reason = $4::text": false, "reason <> ''": false,
		"o.crashes > 0": false, "crashes = 0": false, "state = l.state": false, "LIMIT 1": false,
	} {
		if got := pattern.MatchString(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestReasonsAreAll: waybill.Reasons leaves out no constant.
func TestReasonsAreAll(t *testing.T) {
	t.Parallel()
	listed := map[waybill.Reason]bool{waybill.ReasonNone: true}
	for _, r := range waybill.Reasons() {
		listed[r] = true
	}
	n := 0
	for _, file := range sources(t, ".") {
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") || len(spec.Values) != 1 {
				return true
			}
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
				n++
				if r, err := strconv.Unquote(lit.Value); err != nil || !listed[waybill.Reason(r)] {
					t.Errorf("%s is not in waybill.Reasons", spec.Names[0].Name)
				}
			}
			return true
		})
	}
	if n != len(listed) {
		t.Errorf("%d constants, %d listed", n, len(listed))
	}
}
