package sharedtest

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Golden fails the test if got differs from the file at path, or if document, unless it is empty, does not hold the
// file's content as a code block. With UPDATE_GOLDEN in the environment it writes the file first.
func Golden(tb testing.TB, path, got, document string) {
	tb.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	want, err := os.ReadFile(path) //nolint:gosec // the test names it
	if err != nil {
		tb.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		tb.Errorf("a contract changed (-want +got); UPDATE_GOLDEN=1 accepts it:\n%s", diff)
	}
	if document == "" {
		return
	}
	doc, err := os.ReadFile(document) //nolint:gosec // the test names it
	if err != nil {
		tb.Fatal(err)
	}
	if !strings.Contains(string(doc), "```\n"+string(want)+"```\n") {
		tb.Errorf("%s does not hold the content of %s", document, path)
	}
}
