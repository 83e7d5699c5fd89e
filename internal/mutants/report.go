package main

import (
	"fmt"
	"strings"
)

// report returns the table, and whether the tests noticed all mutants.
func report(results []result) (string, bool) {
	var b strings.Builder
	b.WriteString("# Mutants\n\n`make mutants` wrote this page. Each line is a fault that was put into the code, and the test that noticed.\n\n")
	b.WriteString("| id | fault | file | verdict | killed by |\n|---|---|---|---|---|\n")
	n, ok, spare := map[verdict]int{}, true, 0
	for i := range results {
		r := &results[i]
		v := string(r.verdict)
		if r.spare && r.verdict == survived {
			v = "survived (spare)"
			spare++
		} else {
			n[r.verdict]++
			ok = ok && (r.verdict == killed || r.verdict == hung)
		}
		_, _ = fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.id, r.fault, r.file, v, strings.ReplaceAll(r.by, "|", "/"))
	}
	_, _ = fmt.Fprintf(&b, "\n%d mutants: %d killed, %d hung, %d survived, %d do not build, %d invalid; of %d that are spare the tests noticed nothing.\n",
		len(results), n[killed], n[hung], n[survived], n[unbuilt], n[invalid], spare)
	return b.String(), ok
}
