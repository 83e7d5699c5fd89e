package tree_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A test whose verdict depends on the speed of the machine fails on a busy machine, and teaches people to run it again.
// Three forms of it can be seen in the code: a sleep, a comparison of elapsed time, and a deadline of a fixed length.
// Virtual time is free of this, and package patience has the limits that count from the last progress.

// timed are the tests that may name real time outside of a bubble, by file or by folder, each with its reason. The
// number is how many places there are: one more needs a look, one less is noted.
var timed = []struct {
	path   string
	places int
	why    string
}{
	{"consumer", 19, "helpers of tests in bubbles"},
	{"recurring", 10, "helpers of tests in bubbles"},
	{"relay", 13, "helpers of tests in bubbles"},
	{"inbox", 2, "helpers of tests in bubbles"},
	{"waybilltest", 5, "the loops that it drives are in bubbles"},
	{"store/memory", 2, "pauses between looks"},
	{"internal/patience", 8, "it is about time, in bubbles"},
	{"core", 30, "the suites run in bubbles and on servers: pauses, leases that must end, starts of waits that go on after them"},
	{"internal/checker", 30, "random pauses of actors, and histories with a length"},
	{"internal/historytest", 4, "random pauses of actors, and histories with a length"},
	{"internal/tests/faults", 4, "nightly, alone: it counts seconds"},
	{"internal/tests/outages", 7, "nightly: calls that must give up while a server hangs"},
	{"internal/tests/mistakes", 9, "pauses, the length of an outage, a stop at a random moment"},
	{"internal/tests/matrix", 1, "a pause, so that a kill finds messages in hand"},
	{"internal/nightly", 1, "pauses between looks"},
	{"internal/testenv", 1, "what must be on disk before a kill"},
	{"cmd/waybill", 1, "what must be on disk before a kill"},
	{"contrib/mysql", 1, "pauses between looks"},
	{"dashboard", 1, "a page that is slow on purpose"},
	{"store/postgres", 15, "waits that must end by themselves, pauses, rests of lives"},
	{"store/sqlite", 2, "a wait that must end by itself, a pause"},
	{"transport/rabbitmq", 7, "calls that must give up, pauses, what must be on disk before a kill"},
	{"transport/redisstreams", 3, "pauses, the length of an example and of a benchmark"},
	{"transport/sqs", 1, "a hold that must end"},
	{"transport/table", 4, "limits in bubbles"},
}

// timedPlace is a place in a test whose outcome may depend on the speed of the machine.
type timedPlace struct {
	line int
	what string
}

// timedPlaces returns those of a file, lexically outside of synctest bubbles.
func timedPlaces(fset *token.FileSet, file *ast.File) []timedPlace {
	var found []timedPlace
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch name := calledName(n); name {
			case "synctest.Test":
				return false
			case ".After", ".Before":
				if x, ok := n.Fun.(*ast.SelectorExpr).X.(*ast.CallExpr); ok && calledName(x) == "time.Now" {
					found = append(found, timedPlace{fset.Position(n.Pos()).Line, "time.Now()" + name})
				}
			case "time.Sleep", "context.WithTimeout", "context.WithDeadline", "context.WithTimeoutCause", "context.WithDeadlineCause", "time.After":
				if len(n.Args) > 0 && isPatient(n.Args[len(n.Args)-1]) {
					return true
				}
				found = append(found, timedPlace{fset.Position(n.Pos()).Line, name})
			}
		case *ast.BinaryExpr:
			if n.Op == token.LSS || n.Op == token.GTR || n.Op == token.LEQ || n.Op == token.GEQ {
				for _, side := range []ast.Expr{n.X, n.Y} {
					if call, ok := side.(*ast.CallExpr); ok && (calledName(call) == "time.Since" || calledName(call) == "time.Until" || strings.HasSuffix(calledName(call), ".Sub")) {
						found = append(found, timedPlace{fset.Position(n.Pos()).Line, calledName(call) + " " + n.Op.String()})
					}
				}
			}
		}
		return true
	})
	return found
}

// isPatient says whether a duration or a time is scaled by the load of the machine.
func isPatient(e ast.Expr) bool {
	patient := false
	ast.Inspect(e, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && calledName(call) == "patience.For" {
			patient = true
		}
		return !patient
	})
	return patient
}

// calledName returns "x.f" for a call of that form.
func calledName(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name + "." + sel.Sel.Name
	}
	return "." + sel.Sel.Name
}

func TestNoVerdictBySpeed(t *testing.T) {
	t.Parallel()
	found := map[string][]timedPlace{}
	fset := token.NewFileSet()
	err := fs.WalkDir(os.DirFS(root(t)), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == ".cache") {
			return fs.SkipDir
		}
		suite := (strings.HasPrefix(name, "core/") || strings.HasPrefix(name, "internal/historytest/")) && strings.HasSuffix(path.Dir(name), "test")
		if !strings.HasSuffix(name, "_test.go") && (!suite || !strings.HasSuffix(name, ".go")) {
			return nil
		}
		file, err := parser.ParseFile(fset, filepath.Join(root(t), name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if places := timedPlaces(fset, file); len(places) > 0 {
			found[name] = places
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range timed {
		places, text := 0, strings.Builder{}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if name != entry.path && !strings.HasPrefix(name, entry.path+"/") {
				continue
			}
			places += len(found[name])
			for _, p := range found[name] {
				fmt.Fprintf(&text, "\n\t%s:%d: %s", name, p.line, p.what)
			}
			delete(found, name)
		}
		if places != entry.places || entry.why == "" {
			t.Errorf("%s has %d places that name real time, %d are on the list:%s", entry.path, places, entry.places, text.String())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		for _, p := range found[name] {
			t.Errorf("%s:%d: %s: use package patience, a marker behind, or a bubble", name, p.line, p.what)
		}
	}
}
