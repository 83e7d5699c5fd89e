package tree_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackagesStaySmall: each of the three packages that people learn by heart has a bounded number of exported names.
// The constants of one block count as one.
func TestPackagesStaySmall(t *testing.T) {
	t.Parallel()
	for dir, most := range map[string]int{".": 150, "core": 130, "admin": 70} {
		n := 0
		for _, file := range sources(t, dir) {
			for _, d := range file.Decls {
				n += exported(d)
			}
		}
		if n > most || n < 20 {
			t.Errorf("%s exports %d names; at most %d", dir, n, most)
		}
		t.Logf("%s exports %d names", dir, n)
	}
}

// sources returns the files of a package, tests left out.
func sources(t *testing.T, dir string) []*ast.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// exported returns how many exported top-level names d declares.
func exported(d ast.Decl) int {
	n := 0
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil && d.Name.IsExported() {
			n++
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() {
					n++
				}
			case *ast.ValueSpec:
				for _, name := range s.Names {
					if name.IsExported() {
						n++
					}
				}
			}
		}
		if d.Tok == token.CONST {
			n = min(n, 1)
		}
	}
	return n
}

// TestNothingIsCalledIt: the name of a variable is a noun for its value.
func TestNothingIsCalledIt(t *testing.T) {
	t.Parallel()
	checked := 0
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		checked++
		ast.Inspect(file, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Name == "it" {
				t.Errorf("%s: a variable is called it", fset.Position(id.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil || checked < 100 {
		t.Errorf("%d files: %v", checked, err)
	}
}
