package suitetest

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
)

// grace is how long a check may take to end after its context has ended.
const grace = 30 * time.Second

// Source is the source of a suite. It tells what a check promises, and where.
type Source struct {
	// Files holds the Go files of the suite, without directories.
	Files fs.FS
	// NotDeclared is the error of a check that does not apply.
	NotDeclared error

	parse  sync.Once
	set    *token.FileSet
	funcs  map[string]*ast.FuncDecl
	checks map[string]string // the function of each check, by its name
}

// Promise returns the first paragraph of the comment of the check called name, on one line.
func (s *Source) Promise(name string) string {
	_, _, doc := s.find(name)
	first, _, _ := strings.Cut(doc, "\n\n")
	return oneLine(first)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Do runs the check called name. Its error names the check, the promise, the file and the line; one that matches
// NotDeclared comes out as it is. Do returns soon after ctx has ended, even if the adapter does not: the check then
// goes on by itself.
func (s *Source) Do(ctx context.Context, name string, check func()) error {
	ended := make(chan error, 1)
	go func() {
		err := errors.New("the goroutine of the check was ended, as by a FailNow in the harness")
		defer func() { ended <- err }()
		err = Guard(check)
	}()
	err := s.await(ctx, name, ended)
	if err == nil || errors.Is(err, s.NotDeclared) {
		return err
	}
	fn, at, promise := s.find(name)
	if l, ok := errors.AsType[*located](err); ok {
		if place := l.place(fn); place != "" {
			at = place
		}
	}
	return fmt.Errorf("check %s (%s): %w\n\tabout it: %s", name, at, err, oneLine(promise))
}

func (s *Source) await(ctx context.Context, name string, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	t := time.NewTimer(patience.For(grace))
	defer t.Stop()
	select {
	case err := <-ended:
		return err
	case <-t.C:
	}
	fn, _, _ := s.find(name)
	return fmt.Errorf("it did not end within %s after its time was over (%w): a call of the adapter does not return.%s",
		grace, ctx.Err(), stuck(fn))
}

// stuck returns the stack of the goroutine in which the function fn runs.
func stuck(fn string) string {
	buf := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "."+fn+"(") || strings.Contains(g, "."+fn+"[") {
			return "\n" + g
		}
	}
	return ""
}

// find returns the function of the check called name, where it stands, and its comment.
func (s *Source) find(name string) (fn, at, doc string) {
	s.parse.Do(s.read)
	d := s.funcs[s.checks[name]]
	if d == nil {
		return "", "a place that is not known", "nothing is known"
	}
	p := s.set.Position(d.Pos())
	return d.Name.Name, fmt.Sprintf("%s:%d", p.Filename, p.Line), d.Doc.Text()
}

// read parses the files: once, since a self-test fails hundreds of checks.
func (s *Source) read() {
	s.set, s.funcs, s.checks = token.NewFileSet(), map[string]*ast.FuncDecl{}, map[string]string{}
	files, _ := fs.Glob(s.Files, "*.go")
	var parsed []*ast.File
	for _, file := range files {
		text, err := fs.ReadFile(s.Files, file)
		if err != nil || strings.HasSuffix(file, "_test.go") {
			continue
		}
		if f, err := parser.ParseFile(s.set, file, text, parser.ParseComments|parser.SkipObjectResolution); err == nil {
			parsed = append(parsed, f)
		}
	}
	for _, f := range parsed {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil {
				s.funcs[d.Name.Name] = d
			}
		}
	}
	for _, f := range parsed {
		ast.Inspect(f, func(n ast.Node) bool {
			if row, ok := n.(*ast.CompositeLit); ok && len(row.Elts) > 1 {
				s.check(row)
			}
			return true
		})
	}
}

// check notes a row of a table of checks: it begins with the name of one, and ends with its function.
func (s *Source) check(row *ast.CompositeLit) {
	first, named := row.Elts[0].(*ast.BasicLit)
	last := row.Elts[len(row.Elts)-1]
	if x, ok := last.(*ast.IndexExpr); ok { // of a type
		last = x.X
	}
	fn, ok := last.(*ast.Ident)
	if !named || !ok || s.funcs[fn.Name] == nil {
		return
	}
	if name, err := strconv.Unquote(first.Value); err == nil {
		s.checks[name] = fn.Name
	}
}
