//go:build !race

package costs_test

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A column is something that is counted.
type column int

const (
	statements column = iota
	trips
	logBytes
	frames
	allocs
	numColumns
)

var titles = [numColumns]string{"statements", "round trips", "log bytes", "frames", "allocations"}

// noisy are columns in which two runs differ a little.
var noisy = [numColumns]bool{logBytes: true, allocs: true}

// slack is the further difference that a count may have: by rounding, and by the bytes that Postgres logs every 15 s.
var slack = [numColumns]float64{statements: 0.05, trips: 0.05, logBytes: 200, frames: 0.05, allocs: 0.05}

// counts are what 1,000 messages cost, by column. A column that is missing is not counted.
type counts map[column]float64

// table is what rows cost, by name.
type table map[string]counts

const (
	path      = "testdata/costs.md"
	tolerance = 0.05 // what a count may grow by
	noise     = 0.01 // what two runs of the same code may differ by
)

const intro = `# What 1,000 messages cost

Counts, not times: see docs/design.md, "The cost table". A test of internal/tests/costs fails when a count grows by more than
5 %. Written by ` + "`go test ./internal/tests/costs -update`" + ` with `

// number is how a count is written.
func number(n float64) string {
	if n < 100 {
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return strconv.FormatFloat(n, 'f', 0, 64)
}

// page is the table as a page. versions lists the servers that it was made with.
func (t table) page(versions string) string {
	var b strings.Builder
	b.WriteString(intro + versions + ".\n\n| work |")
	for _, title := range titles {
		b.WriteString(" " + title + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", int(numColumns)) + "\n")
	for _, name := range slices.Sorted(maps.Keys(t)) {
		b.WriteString("| " + name + " |")
		for c := range numColumns {
			text := ""
			if n, ok := t[name][c]; ok {
				text = number(n)
			}
			b.WriteString(" " + text + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// parse reads a page, with the versions on it.
func parse(page string) (t table, versions string, err error) {
	t = table{}
	if _, rest, ok := strings.Cut(page, "-update` with "); ok {
		versions, _, _ = strings.Cut(rest, ".\n")
	}
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != int(numColumns)+3 || strings.HasPrefix(line, "| work") || strings.HasPrefix(line, "|---") {
			continue
		}
		row := counts{}
		for c := range numColumns {
			text := strings.TrimSpace(cells[c+2])
			if text == "" {
				continue
			}
			if row[c], err = strconv.ParseFloat(text, 64); err != nil {
				return nil, "", fmt.Errorf("%s: %q: %w", path, line, err)
			}
		}
		t[strings.TrimSpace(cells[1])] = row
	}
	return t, versions, nil
}

// compare returns what grew, and what shrank, of the rows whose names begin with prefix.
func compare(was, is table, prefix string) (grew, shrank []string) {
	for _, name := range slices.Sorted(maps.Keys(is)) {
		for c := range numColumns {
			n, counted := is[name][c]
			old, known := was[name][c]
			if !counted {
				continue
			}
			text := fmt.Sprintf("%s: %s for 1,000 messages: %s, was %s", name, titles[c], number(n), number(old))
			if old > 0 {
				text += fmt.Sprintf(" (%+.1f %%)", 100*(n/old-1))
			}
			switch {
			case !known:
				grew = append(grew, fmt.Sprintf("%s: %s are not in the table: run with -update", name, titles[c]))
			case n > old*(1+tolerance)+slack[c]:
				grew = append(grew, text)
			case n < old*(1-tolerance)-slack[c]:
				shrank = append(shrank, text)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if _, ok := is[name]; !ok && strings.HasPrefix(name, prefix) {
			grew = append(grew, name+" is in the table and was not counted: run with -update")
		}
	}
	return grew, shrank
}

// merge replaces in was the rows whose names begin with prefix by those of is. A row that differs by noise alone stays.
func merge(was, is table, prefix string) table {
	out := maps.Clone(was)
	maps.DeleteFunc(out, func(name string, _ counts) bool { return strings.HasPrefix(name, prefix) })
	for name, row := range is {
		row = maps.Clone(row)
		for c, n := range row {
			if old, ok := was[name][c]; ok && noisy[c] && math.Abs(n-old) <= old*noise {
				row[c] = old
			}
		}
		out[name] = row
	}
	return out
}

// check compares rows, all of those whose names begin with prefix, with the table, or writes them into it. made names
// the server's version.
func check(t *testing.T, prefix string, is table, made string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	was, versions, err := parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	goVersion := "Go " + regexp.MustCompile(`^go(\d+\.\d+).*`).ReplaceAllString(runtime.Version(), "$1")
	if *update {
		made := slices.DeleteFunc([]string{goVersion, made}, func(s string) bool { return s == "" })
		for old := range strings.SplitSeq(versions, ", ") {
			product, _, _ := strings.Cut(old, " ")
			if old != "" && !slices.ContainsFunc(made, func(s string) bool { return strings.HasPrefix(s, product+" ") }) {
				made = append(made, old)
			}
		}
		slices.Sort(made)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(merge(was, is, prefix).page(strings.Join(made, ", "))), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Log(is.page(made))
	grew, shrank := compare(was, is, prefix)
	for _, s := range shrank {
		t.Logf("%s: improve the table: run with -update", s)
	}
	for _, s := range grew {
		t.Error(s)
	}
	if len(grew) > 0 {
		t.Logf("the table was made with %s; this is %s %s", versions, goVersion, made)
	}
}

// The comparison fails from more than 5 % on, and only tells of what shrank.
func TestCompare(t *testing.T) {
	t.Parallel()
	was := table{"a: x": {statements: 1000, allocs: 50_000}, "a: gone": {frames: 1}, "b: other": {frames: 1}}
	for name, tc := range map[string]struct {
		is           counts
		grew, shrank int
	}{
		"the same":       {counts{statements: 1000, allocs: 50_000}, 0, 0},
		"4 % more":       {counts{statements: 1040, allocs: 52_000}, 0, 0},
		"6 % more":       {counts{statements: 1060, allocs: 50_000}, 1, 0},
		"6 % less":       {counts{statements: 1000, allocs: 47_000}, 0, 1},
		"a new column":   {counts{statements: 1000, allocs: 50_000, frames: 3}, 1, 0},
		"without allocs": {counts{statements: 1000}, 0, 0},
	} {
		grew, shrank := compare(was, table{"a: x": tc.is, "a: gone": {frames: 1}}, "a: ")
		if len(grew) != tc.grew || len(shrank) != tc.shrank {
			t.Errorf("%s: grew %q, shrank %q", name, grew, shrank)
		}
	}
	if grew, _ := compare(was, table{"a: x": was["a: x"]}, "a: "); len(grew) != 1 || !strings.HasPrefix(grew[0], "a: gone ") {
		t.Errorf("a row that is not counted any more: %q", grew)
	}
}

// A page can be read again. An update keeps other rows, and those that differ by noise.
func TestPage(t *testing.T) {
	t.Parallel()
	was := table{"a: x": {statements: 12.5, allocs: 50_000}, "a: gone": {frames: 1}, "b: other": {frames: 3000}}
	got, versions, err := parse(was.page("Go 1.26, PostgreSQL 15"))
	if err != nil || versions != "Go 1.26, PostgreSQL 15" {
		t.Fatal(versions, err)
	}
	merged := merge(got, table{"a: x": {statements: 12.6, allocs: 50_400}}, "a: ")
	if want := (table{"a: x": {statements: 12.6, allocs: 50_000}, "b: other": {frames: 3000}}).page(""); merged.page("") != want {
		t.Errorf("got\n%s\nwant\n%s", merged.page(""), want)
	}
}
