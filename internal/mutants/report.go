package main

import (
	"fmt"
	"strings"
)

const (
	notRun = "not run"
	mayBe  = "survived (spare)"
)

// row is a line of the page: what became of a mutant.
type row struct{ verdict, by string }

// read returns the lines of a page by the mutants' ids.
func read(page string) map[string]row {
	rows := map[string]row{}
	for line := range strings.Lines(page) {
		if cells := strings.Split(strings.TrimSpace(line), " | "); len(cells) == 5 && strings.HasPrefix(line, "| ") {
			rows[strings.TrimPrefix(cells[0], "| ")] = row{cells[3], strings.TrimSuffix(strings.TrimSuffix(cells[4], "|"), " ")}
		}
	}
	return rows
}

// add takes in what became of mutants in a run, and reports whether the tests noticed all of them.
func add(rows map[string]row, results []result) bool {
	ok := true
	for i := range results {
		r := &results[i]
		v := string(r.verdict)
		switch {
		case r.spare && r.verdict == survived:
			v = mayBe
		case r.verdict != killed:
			ok = false
		}
		rows[r.id] = row{v, strings.ReplaceAll(strings.ReplaceAll(r.by, " | ", " / "), "\t", " ")}
	}
	return ok
}

// write returns the page of all mutants.
func write(all []mutant, rows map[string]row) string {
	var b strings.Builder
	b.WriteString("# Mutants\n\n`make mutants` writes this page. Each line is a fault that was put into the code, and the test that noticed.\n\n")
	b.WriteString("| id | fault | file | verdict | killed by |\n|---|---|---|---|---|\n")
	n := map[string]int{}
	for _, m := range all {
		r, ok := rows[m.id]
		if !ok {
			r.verdict = notRun
		}
		n[r.verdict]++
		_, _ = fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", m.id, m.fault, m.file, r.verdict, r.by)
	}
	_, _ = fmt.Fprintf(&b, "\n%d mutants: %d killed, %d hung, %d survived, %d do not build, %d invalid, %d not run; %d that are spare survived.\n",
		len(all), n[string(killed)], n[string(hung)], n[string(survived)], n[string(unbuilt)], n[string(invalid)], n[notRun], n[mayBe])
	return b.String()
}
