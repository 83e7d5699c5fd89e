package postgres

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// repeated are values of packages waybill and core in a text of SQL: numbers of states, control kinds, obstacles and
// answers where they stand, and quoted reasons.
func repeated() *regexp.Regexp {
	words := make([]string, 0, len(reasons))
	for _, r := range reasons {
		words = append(words, regexp.QuoteMeta(string(r)))
	}
	return regexp.MustCompile(`\b(state|status|kind|why)\s*(=|<>|NOT IN \(|IN \()\s*[1-9]` +
		`|\breason\s*(=|<>|NOT IN \(|IN \()\s*'[a-z]` +
		`|'(` + strings.Join(words, "|") + `)'` +
		`|\{control\} \([^)]*\)\s+\(*SELECT (DISTINCT ON \([^)]*\) )?[1-9]` +
		`|crashes\s*(>=?|<=?|=)\s*[1-9]` +
		`|(THEN|ELSE) [1-9][^0-9].*AS (status|why|state)\b`)
}

// TestNoRepeatedLiterals: no text of SQL in this package repeats a value that package waybill or core decides on; a
// place does, see literals. Migrations are files of their own.
func TestNoRepeatedLiterals(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	inner, err := filepath.Glob("internal/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	pattern, texts := repeated(), 0
	for _, path := range append(paths, inner...) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
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
			if bad := pattern.FindString(text); bad != "" {
				t.Errorf("%s: %q repeats a value: render it from a place, see literals.go", fset.Position(lit.Pos()), bad)
			}
			return true
		})
	}
	if texts < 100 {
		t.Errorf("only %d texts were looked at", texts)
	}
}

// The pattern must be able to fail.
func TestRepeatedLiteralsAreFound(t *testing.T) {
	t.Parallel()
	pattern := repeated()
	for text, want := range map[string]bool{
		"SET state = 5, reason = ''": true, "u.state = 3": true, "l.state IN (3, 5)": true, "l.state NOT IN (1": true,
		"o.reason NOT IN ('cancelled', 'x')": true, "reason = 'expired'": true, "f.status <> 3": true, "c.kind = 4": true,
		"'set_aside'": true, "INSERT INTO {control} (kind, route)\n    SELECT 1, u.route": true,
		"INSERT INTO {control} (kind)\n    (SELECT DISTINCT ON (u.key) 1, u.route": true, "o.crashes >= 10": true,
		"CASE WHEN r.retry THEN 1 END AS why":     true,
		"state = {abandoned}, reason = {expired}": false, "reason = $4::text": false, "reason <> ''": false,
		"o.crashes > 0": false, "crashes = 0": false, "state = l.state": false, "LIMIT 1": false,
	} {
		if got := pattern.MatchString(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestReasonsAreAll compares reasons with the constants of package waybill.
func TestReasonsAreAll(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "reason.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") || len(spec.Values) != 1 {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		declared++
		if r := waybill.Reason(value); r != waybill.ReasonNone && !slices.Contains(reasons, r) {
			t.Errorf("reasons lacks %q", value)
		}
		return true
	})
	if declared != len(reasons)+1 {
		t.Errorf("%d reasons are declared, and %d listed", declared, len(reasons))
	}
}

// TestMigrationsAgree: the migrations, which are never edited, say the same as the places.
func TestMigrationsAgree(t *testing.T) {
	t.Parallel()
	m, err := NewMigrations(MigrationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, n := m.SQL(), schema.NewNames("", "", "").With(literals)
	for _, want := range []string{
		"state          smallint         NOT NULL DEFAULT {pending},",
		"CASE WHEN reason = '' THEN 0 WHEN reason IN {withdrawn} THEN 2 ELSE 1 END",
		".state IS '{pending} pending, {published} published, {failed} failed, {abandoned} abandoned'",
		"'{tell_key} a key may be free, {tell_record} a record is ready again, {tell_from} records from a sequence on are ready again, " +
			"{tell_decide} an operator ends a record'",
		".seq IS 'the record; of kind {tell_from} the first one'",
		"ends it, of kind {tell_decide}'",
	} {
		if want := n.SQL(want); !strings.Contains(text, want) {
			t.Errorf("the migrations do not say %q", want)
		}
	}
}

// TestPlaces: what the places stand for, and that no text keeps one.
func TestPlaces(t *testing.T) {
	t.Parallel()
	n := newNames("", "", "")
	for place, want := range map[string]string{
		"{pending}": "1", "{processing}": "2", "{published}": "3", "{failed}": "4", "{abandoned}": "5", "{terminal}": "(3, 5)",
		"{withdrawn}": "('cancelled', 'replaced')", "{unblocking}": "('cancelled', 'replaced', 'skipped', 'set_aside')",
		"{expired}": "'expired'",
	} {
		if got := n.SQL(place); got != want {
			t.Errorf("%s is %s, want %s", place, got, want)
		}
	}
	if !core.StatePublished.Terminal() || len(states()) != 5 {
		t.Errorf("states are %v", states())
	}
	o, err := NewSQLStager(Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	left := regexp.MustCompile(`\{[a-z_]+\}`)
	for _, text := range append(texts(newStatements(n)), texts(o.(*sqlStager).sql)...) {
		if place := left.FindString(text); place != "" {
			t.Errorf("%s is left in %s", place, text)
		}
	}
}

// texts returns all strings in a struct of statements.
func texts(statements any) []string {
	var all []string
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() { //nolint:exhaustive // what such structs hold
		case reflect.Pointer:
			walk(v.Elem())
		case reflect.String:
			all = append(all, v.String())
		case reflect.Struct:
			for _, field := range v.Fields() {
				walk(field)
			}
		case reflect.Array:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Map:
			for each := v.MapRange(); each.Next(); {
				walk(each.Value())
			}
		}
	}
	walk(reflect.ValueOf(statements))
	return all
}
