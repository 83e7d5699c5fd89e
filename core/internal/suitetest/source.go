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
	parsed []*ast.File
}

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
	return fmt.Errorf("check %s (%s): %w\n\tabout it: %s", name, at, err, promise)
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

// find returns the function of the check called name, where it stands, and its comment on one line.
func (s *Source) find(name string) (fn, at, doc string) {
	at, doc = "a place that is not known", "nothing is known"
	s.parse.Do(s.read)
	for _, f := range s.parsed {
		if fn = function(f, name); fn != "" {
			break
		}
	}
	for _, f := range s.parsed {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil && d.Name.Name == fn {
				p := s.set.Position(d.Pos())
				return fn, fmt.Sprintf("%s:%d", p.Filename, p.Line), strings.Join(strings.Fields(d.Doc.Text()), " ")
			}
		}
	}
	return fn, at, doc
}

// read parses the files: once, since a self-test fails hundreds of checks.
func (s *Source) read() {
	s.set = token.NewFileSet()
	files, _ := fs.Glob(s.Files, "*.go")
	for _, file := range files {
		text, err := fs.ReadFile(s.Files, file)
		if err != nil || strings.HasSuffix(file, "_test.go") {
			continue
		}
		if f, err := parser.ParseFile(s.set, file, text, parser.ParseComments|parser.SkipObjectResolution); err == nil {
			s.parsed = append(s.parsed, f)
		}
	}
}

// function returns the function that stands beside name in a table of checks of f.
func function(f *ast.File, name string) (fn string) {
	ast.Inspect(f, func(n ast.Node) bool {
		row, ok := n.(*ast.CompositeLit)
		if !ok || len(row.Elts) < 2 || fn != "" {
			return fn == ""
		}
		if lit, ok := row.Elts[0].(*ast.BasicLit); ok && lit.Value == strconv.Quote(name) {
			e := row.Elts[1]
			if x, ok := e.(*ast.IndexExpr); ok {
				e = x.X
			}
			if id, ok := e.(*ast.Ident); ok {
				fn = id.Name
			}
		}
		return true
	})
	return fn
}
