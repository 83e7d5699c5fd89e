package tree_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A stall of five minutes costs nothing in a bubble, and a loop without a pause little. So each bubble of a test has a
// budget of virtual time (patience.BudgetOf), and each engine that begins in one has a counter of its calls.

// unbudgeted are the folders whose bubbles need no budget, each with its reason.
var unbudgeted = map[string]string{
	"core/inboxtest":          "the suite has a limit for each check",
	"core/internal/suitetest": "it tests that limit",
	"core/limitertest":        "the suite has a limit for each check",
	"core/outboxtest":         "the suite has a limit for each check",
	"core/storetest":          "the suite has a limit for each check",
	"core/transporttest":      "the suite has a limit for each check",
	"internal/patience":       "it tests budgets",
}

// TE-08.
func TestBubblesHaveBudgets(t *testing.T) {
	t.Parallel()
	folders := map[string]bool{}
	err := fs.WalkDir(os.DirFS(root(t)), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == ".cache") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "internal/tests/tree/") {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if strings.Contains(string(text), "synctest.Test(") {
			folders[path.Dir(name)] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		if _, ok := unbudgeted[dir]; ok {
			continue
		}
		for _, p := range testPackages(t, dir) {
			for _, lacks := range p.unbudgeted() {
				t.Error(lacks)
			}
		}
	}
	for dir := range unbudgeted {
		if !folders[dir] {
			t.Errorf("%s has no bubbles: delete its line", dir)
		}
	}
}

// TestBubblesWithoutBudgetsAreFound: the check sees what a bubble calls, through helpers and methods.
func TestBubblesWithoutBudgetsAreFound(t *testing.T) {
	t.Parallel()
	const text = `package x
import ("testing"; "testing/synctest"; "patience"; "relay")
type kit struct{}
func (k *kit) counted(t *testing.T) { count = patience.BudgetOf(t).Counter(); relay.New(nil) }
func (k *kit) uncounted(t *testing.T) { relay.New(nil) }
func pass[T any](t *testing.T) { patience.Pass(t, 1) }
func TestA(t *testing.T) { pass[int](t); synctest.Test(t, func(t *testing.T) { k := &kit{}; k.counted(t) }) }
func TestB(t *testing.T) { synctest.Test(t, func(t *testing.T) { pass[int](t) }) }
func TestC(t *testing.T) { pass[int](t); synctest.Test(t, func(t *testing.T) { t.Log() }) }
func TestD(t *testing.T) { synctest.Test(t, func(t *testing.T) { pass[int](t); k := &kit{}; k.uncounted(t) }) }
func TestE(t *testing.T) { synctest.Test(t, inBubble) }
func inBubble(t *testing.T) { pass[int](t) }
`
	p := newCheckedPackage()
	file, err := parser.ParseFile(p.fset, "x_test.go", text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	p.files = []*ast.File{file}
	p.check("x")
	want := []string{"x_test.go:9:42: " + noBudget, "x_test.go:10:28: " + noCounter}
	if got := p.unbudgeted(); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

const (
	noBudget  = "the bubble has no budget of virtual time: call patience.BudgetOf with its test"
	noCounter = "the bubble begins an engine whose calls nobody counts: give it a counter of the budget"
)

// unbudgeted returns the bubbles of p that lack a budget of time or of calls.
func (p *checkedPackage) unbudgeted() (lacks []string) {
	budgets, counters, engines := p.users(".BudgetOf", "patience.Pass"), p.users(".Counter"),
		p.users("relay.New", "consumer.New", "table.New")
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || calledName(call) != "synctest.Test" {
				return true
			}
			at := p.fset.Position(call.Pos()).String() + ": "
			if bubble := call.Args[1]; !budgets.in(bubble) {
				lacks = append(lacks, at+noBudget)
			} else if engines.in(bubble) && !counters.in(bubble) {
				lacks = append(lacks, at+noCounter)
			}
			return true
		})
	}
	return lacks
}

// users finds the code that names a function of another package, itself or through functions of its own package. ".F"
// is any method F.
type users struct {
	p     *checkedPackage
	names []string
	found map[types.Object]bool
}

func (p *checkedPackage) users(names ...string) *users {
	c := &users{p, names, map[types.Object]bool{}}
	for grown := true; grown; {
		grown = false
		for _, file := range p.files {
			for _, d := range file.Decls {
				decl, ok := d.(*ast.FuncDecl)
				if ok && !c.found[p.info.Defs[decl.Name]] && c.in(decl) {
					c.found[p.info.Defs[decl.Name]], grown = true, true
				}
			}
		}
	}
	return c
}

// in reports whether n names one.
func (c *users) in(n ast.Node) bool {
	yes := false
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, _ := n.X.(*ast.Ident)
			yes = yes || slices.Contains(c.names, "."+n.Sel.Name) || x != nil && slices.Contains(c.names, x.Name+"."+n.Sel.Name)
		case *ast.Ident:
			f, ok := c.p.info.Uses[n].(*types.Func)
			yes = yes || ok && c.found[f.Origin()]
		}
		return !yes
	})
	return yes
}

// testPackages reads the package of a folder with its tests, and that of its external tests.
func testPackages(t *testing.T, dir string) map[string]*checkedPackage {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*checkedPackage{}
	for _, name := range paths {
		fset := token.NewFileSet()
		head, err := parser.ParseFile(fset, name, nil, parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		p := all[head.Name.Name]
		if p == nil {
			p = newCheckedPackage()
			all[head.Name.Name] = p
		}
		file, err := parser.ParseFile(p.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, file)
	}
	for name, p := range all {
		p.check(name)
	}
	return all
}
