package docs_test

// A reader copies the name of a setting from a page, and an operator from an error text. So each name is looked up in
// the schema of the settings here.

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	number     = regexp.MustCompile(`^[0-9]+$`)
	identifier = regexp.MustCompile(`\.[A-Z]\w*[a-z]`) // of Go
)

// settings is the schema of the configuration.
type settings map[string]any

// all returns the alternatives that a part of the schema stands for.
func (s settings) all(part any) (out []map[string]any) {
	node, ok := part.(map[string]any)
	if !ok {
		return nil
	}
	out = append(out, node)
	if ref, ok := node["$ref"].(string); ok {
		defs, _ := s["$defs"].(map[string]any)
		out = append(out, s.all(defs[strings.TrimPrefix(ref, "#/$defs/")])...)
	}
	for _, word := range []string{"anyOf", "oneOf", "allOf"} {
		list, _ := node[word].([]any)
		for _, one := range list {
			out = append(out, s.all(one)...)
		}
	}
	out = append(out, s.all(node["then"])...) // the settings of a kind
	return append(out, s.all(node["items"])...)
}

// has reports whether there is a setting of that name, such as stores.NAME.url.
func (s settings) has(path string) bool {
	at := s.all(map[string]any(s))
	for word := range strings.SplitSeq(path, ".") {
		if number.MatchString(word) {
			continue // of an item
		}
		var next []map[string]any
		for _, node := range at {
			properties, _ := node["properties"].(map[string]any)
			if one, ok := properties[word]; ok {
				next = append(next, s.all(one)...)
				continue
			}
			next = append(next, s.all(node["additionalProperties"])...) // a name of the operator's
		}
		if at = next; len(at) == 0 {
			return false
		}
	}
	return true
}

// named matches the name of a setting below a word of the first level.
func (s settings) named() *regexp.Regexp {
	properties, _ := s["properties"].(map[string]any)
	var first []string
	for word := range properties {
		first = append(first, word)
	}
	slices.Sort(first)
	return regexp.MustCompile(`(?:^|[^a-zA-Z0-9_./"-])((?:` + strings.Join(first, "|") + `)(?:\.[a-zA-Z0-9_-]+)+)(?:[^a-zA-Z0-9_./(]|\.?$|\. )`)
}

// OP-02: the settings have each full name, such as stores.NAME.url, in a page, a deployment, an error or a help text.
func TestNamedSettingsExist(t *testing.T) {
	t.Parallel()
	var schema settings
	if err := json.Unmarshal([]byte(read(t, schemaFile)), &schema); err != nil {
		t.Fatal(err)
	}
	found, named := map[string]int{}, schema.named()
	check := func(path, where, text string) {
		t.Helper()
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if identifier.MatchString(m[1]) {
				continue
			}
			found[where]++
			if !schema.has(m[1]) {
				t.Errorf("%s: there is no setting %s", path, m[1])
			}
		}
	}
	for _, path := range append(pages(t), filepath.Join("..", "..", "README.md")) {
		if filepath.Base(path) == "metrics.md" {
			continue // of events and metrics: TestMetricsNamesEverything
		}
		text := read(t, path)
		for _, block := range fenced.FindAllStringSubmatch(text, -1) {
			if block[1] == "sh" {
				check(path, "pages", block[2])
			}
		}
		for _, m := range inline.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			check(path, "pages", m[1])
		}
	}
	err := filepath.WalkDir(deploy, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) != ".json" {
			check(path, "deployments", read(t, path))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	walk(t, func(path string) {
		dir, _, _ := strings.Cut(strings.TrimPrefix(filepath.ToSlash(path), "../../"), "/")
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || slices.Contains([]string{"examples", "internal"}, dir) {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				// else it may name an event
				if text, _ := strconv.Unquote(lit.Value); strings.ContainsAny(text, " =") {
					check(path, "texts", text)
				}
			}
			return true
		})
	})
	if found["pages"] < 10 || found["texts"] < 20 {
		t.Errorf("only %v names", found)
	}
}
