package docs_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated documentation")

// options are the structs that users fill, by package.
var options = []struct{ pkg, name string }{
	{"relay", "Options"},
	{"relay", "Route"},
	{"consumer", "Options"},
	{".", "Subscription"},
	{".", "SharedLimit"},
	{".", "GroupLimit"},
	{".", "Backoff"},
	{".", "Limits"},
	{".", "Retention"},
	{"inbox", "Options"},
	{"inbox", "BatchOptions"},
	{"store/postgres", "Options"},
	{"store/postgres", "InboxOptions"},
	{"store/sqlite", "Options"},
	{"store/mongo", "Options"},
	{"store/memory", "Options"},
	{"transport/rabbitmq", "Options"},
	{"transport/rabbitmq", "ConnectionOptions"},
	{"transport/rabbitmq/topology", "Options"},
	{"transport/rabbitmq/topology", "BrokerOptions"},
	{"transport/redisstreams", "Options"},
	{"transport/sqs", "Options"},
	{"transport/memory", "Options"},
	{"transport/table", "Options"},
	{"transport/table", "QueueOptions"},
	{"health", "Options"},
	{"hlc", "Options"},
	{"waybilltest", "Options"},
	{"waybilltest", "LoopOptions"},
}

// TestOptionsPage checks docs/options.md against the doc comments. Rewrite it with go test ./internal/tests/docs
// -update.
//
// RL-08
func TestOptionsPage(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Options\n\nGenerated from the doc comments by `make generate`; do not edit. The zero value of every field is its default, as said\nin its row.\n")
	for _, o := range options {
		fmt.Fprintf(&b, "\n## %s.%s\n\n", strings.Replace(filepath.Base(o.pkg), ".", "waybill", 1), o.name)
		if filepath.Dir(o.pkg) != "." {
			fmt.Fprintf(&b, "Package `%s`.\n\n", o.pkg)
		}
		b.WriteString("| field | type | meaning |\n|---|---|---|\n")
		for _, f := range fields(t, o.pkg, o.name) {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", f.name, f.typ, f.doc)
		}
	}
	page := filepath.Join(root, "docs", "options.md")
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, page) != b.String() {
		t.Errorf("%s does not say what the code says: run make generate", page)
	}
}

type field struct{ name, typ, doc string }

func fields(t *testing.T, pkg, name string) []field {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	for _, path := range paths {
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if obj := lookup(file, name); obj != nil {
			return describe(t, fset, obj)
		}
	}
	t.Fatalf("package %s has no struct %s", pkg, name)
	return nil
}

func lookup(file *ast.File, name string) *ast.StructType {
	var found *ast.StructType
	ast.Inspect(file, func(n ast.Node) bool {
		if ts, ok := n.(*ast.TypeSpec); ok && ts.Name.Name == name {
			found, _ = ts.Type.(*ast.StructType)
		}
		return found == nil
	})
	return found
}

func describe(t *testing.T, fset *token.FileSet, s *ast.StructType) []field {
	t.Helper()
	var out []field
	doc := ""
	for _, f := range s.Fields.List {
		if f.Doc != nil {
			doc = f.Doc.Text()
		} else if f.Comment != nil {
			doc = f.Comment.Text()
		}
		for _, n := range f.Names {
			if !n.IsExported() {
				continue
			}
			if doc == "" {
				t.Errorf("%s has no doc comment", n.Name)
			}
			var typ strings.Builder
			src := read(t, fset.Position(f.Type.Pos()).Filename)
			typ.WriteString(strings.Join(strings.Fields(src[fset.Position(f.Type.Pos()).Offset:fset.Position(f.Type.End()).Offset]), " "))
			out = append(out, field{n.Name, strings.ReplaceAll(typ.String(), "|", `\|`), strings.ReplaceAll(strings.Join(strings.Fields(doc), " "), "|", `\|`)})
		}
	}
	return out
}
