package tree_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// engines are the packages whose code must be easy to read from top to bottom.
var engines = []string{"dispatch", "relay"}

// checkedPackage is a package of ours, type-checked without its imports: declarations of others are unknown. That is
// enough to find the calls within it. A call through an interface or a function value is not seen.
type checkedPackage struct {
	fset  *token.FileSet
	files []*ast.File
	info  *types.Info
	pkg   *types.Package
}

// checkPackage reads a package, tests left out.
func checkPackage(t *testing.T, dir string) *checkedPackage {
	t.Helper()
	p := newCheckedPackage()
	paths, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(p.fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, f)
	}
	p.check(dir)
	return p
}

func newCheckedPackage() *checkedPackage {
	return &checkedPackage{fset: token.NewFileSet(), info: &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}}
}

func (p *checkedPackage) check(name string) {
	conf := types.Config{Importer: noImports{}, Error: func(error) {}}
	p.pkg, _ = conf.Check(name, p.fset, p.files, p.info)
}

// noImports imports nothing.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not looked at") }

// calls returns the functions of p that each of its functions calls or names, in order.
func (p *checkedPackage) calls() map[*types.Func][]*types.Func {
	all := map[*types.Func][]*types.Func{}
	for _, file := range p.files {
		for _, d := range file.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			from, ok := p.info.Defs[decl.Name].(*types.Func)
			if !ok {
				continue
			}
			all[from] = nil
			ast.Inspect(decl, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					if to, ok := p.info.Uses[id].(*types.Func); ok && to.Pkg() == p.pkg {
						all[from] = append(all[from], to.Origin())
					}
				}
				return true
			})
		}
	}
	return all
}

// cycle returns functions that call each other in a circle, nil if there are none.
func cycle(calls map[*types.Func][]*types.Func) []*types.Func {
	done := map[*types.Func]bool{}
	var path []*types.Func
	var visit func(f *types.Func) []*types.Func
	visit = func(f *types.Func) []*types.Func {
		if at := slices.Index(path, f); at >= 0 {
			return slices.Clone(path[at:])
		}
		if done[f] {
			return nil
		}
		done[f] = true
		path = append(path, f)
		for _, to := range calls[f] {
			if found := visit(to); found != nil {
				return found
			}
		}
		path = path[:len(path)-1]
		return nil
	}
	for _, f := range slices.SortedFunc(maps.Keys(calls), func(a, b *types.Func) int { return int(a.Pos() - b.Pos()) }) {
		if found := visit(f); found != nil {
			return found
		}
	}
	return nil
}

// TestNoMutualRecursion: no function of an engine calls itself through others. A loop reads better.
func TestNoMutualRecursion(t *testing.T) {
	t.Parallel()
	for _, dir := range engines {
		calls := checkPackage(t, dir).calls()
		n := 0
		for _, to := range calls {
			n += len(to)
		}
		if n < 200 {
			t.Errorf("%s: only %d calls were found", dir, n)
		}
		if found := cycle(calls); found != nil {
			t.Errorf("%s: these call each other: %s", dir, found)
		}
	}
}

// TestCycleIsFound: the check sees two methods that call each other, from a function literal too.
func TestCycleIsFound(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"type a struct{}; type b struct{ a a }; func (x *b) f() { func() { x.g() }() }; func (x *b) g() { x.f() }": true,
		"type a struct{}; func (a) f() {}; type b struct{ a a }; func (x *b) f() { x.a.f() }":                      false,
	} {
		p := &checkedPackage{fset: token.NewFileSet(), info: &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}}
		f, err := parser.ParseFile(p.fset, "x.go", "package x; "+text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.files = []*ast.File{f}
		conf := types.Config{Importer: noImports{}}
		if p.pkg, err = conf.Check("x", p.fset, p.files, p.info); err != nil {
			t.Fatal(err)
		}
		if got := cycle(p.calls()) != nil; got != want {
			t.Errorf("%s: a cycle was found: %t", text, got)
		}
	}
}

// TestStructsStaySmall: no struct of an engine has more than 20 fields. An embedded one counts as one.
func TestStructsStaySmall(t *testing.T) {
	t.Parallel()
	const most = 20
	for _, dir := range append([]string{"consumer", "inbox", "transport/table"}, engines...) {
		scope := checkPackage(t, dir).pkg.Scope()
		for _, name := range scope.Names() {
			if s, ok := scope.Lookup(name).Type().Underlying().(*types.Struct); ok && s.NumFields() > most {
				t.Errorf("%s.%s has %d fields; at most %d", dir, name, s.NumFields(), most)
			}
		}
	}
}

// layers are the files of package relay from the top down, as engine.go says.
const layers = "fleet relay health pause removedead loop once idle member weights feed publish unroutable stop wait presence upkeep behindkey bounds overdue outcome breaker engine log tasks lease " +
	"telemetry hooks limit unserved record options"

// TestRelayHasLayers: hardly any function of the relay calls one that is in a file further up.
func TestRelayHasLayers(t *testing.T) {
	t.Parallel()
	const most = 10
	order := strings.Fields(layers)
	p := checkPackage(t, "relay")
	layer := func(f *types.Func) int {
		name := strings.TrimSuffix(filepath.Base(p.fset.Position(f.Pos()).Filename), ".go")
		at := slices.Index(order, name)
		if at < 0 {
			t.Errorf("%s.go has no layer", name)
		}
		return at
	}
	up := map[string]bool{}
	for from, calls := range p.calls() {
		for _, to := range calls {
			if layer(to) < layer(from) {
				up[fmt.Sprintf("%s -> %s", from.Name(), to.Name())] = true
			}
		}
	}
	t.Logf("%d calls go up", len(up))
	if len(up) > most {
		t.Errorf("%d calls go up, at most %d:\n%s", len(up), most, strings.Join(slices.Sorted(maps.Keys(up)), "\n"))
	}
}
