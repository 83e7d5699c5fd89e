package archtest_test

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
)

// repeated returns what a statement repeats of the contract: the number of a state, or a reason. Package sqltext has
// places for them.
func repeated(text string) []string {
	found := regexp.MustCompile(`\bstate\s*(=|<>|!=|IN|NOT IN)\s*\(?\s*[0-9]`).FindAllString(text, -1)
	for _, r := range waybill.Reasons() {
		if quoted := "'" + string(r) + "'"; strings.Contains(strings.ReplaceAll(text, "{"+quoted+"}", ""), quoted) {
			found = append(found, quoted)
		}
	}
	return found
}

// TestSQLRepeatsNoRule: packages core and waybill alone decide about the numbers of states, and about which reasons
// block a key.
func TestSQLRepeatsNoRule(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, dir := range []string{"store/sqlite"} {
		for _, file := range sources(t, dir) {
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING || !strings.HasPrefix(lit.Value, "`") {
					return true
				}
				checked++
				for _, what := range repeated(lit.Value) {
					t.Errorf("%s: %q repeats %s: use a place of package sqltext", dir, lit.Value, what)
				}
				return true
			})
		}
	}
	if checked < 50 {
		t.Errorf("%d texts were checked", checked)
	}
}

func TestRepeatedMatches(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"WHERE r.state = 4": true, "state IN (1, 4)": true, "reason = 'expired'": true, "state NOT IN ( 3 )": true,
		"state = {failed}": false, "reason = {'expired'}": false, "state = ?2": false, "estate = 4": false,
	} {
		if got := repeated(text) != nil; got != want {
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
