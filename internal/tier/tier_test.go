package tier

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake notes how a test ended.
type fake struct{ outcome string }

func (*fake) Helper()                        {}
func (f *fake) Skipf(s string, args ...any)  { f.outcome = "skipped: " + fmt.Sprintf(s, args...) }
func (f *fake) Fatalf(s string, args ...any) { f.outcome = "failed: " + fmt.Sprintf(s, args...) }
func (f *fake) ended(with, text string) bool {
	return strings.HasPrefix(f.outcome, with) && strings.Contains(f.outcome, text)
}

// A missing server is a failure in CI and in the gate; elsewhere it is a skipped test and a line of the file.
func TestMissing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skipped")
	t.Setenv(VariableSkipped, file)
	for i, c := range []struct{ servers, ci, want string }{
		{"", "", "skipped"},
		{"", "true", "failed"},
		{"required", "", "failed"},
		{"optional", "true", "skipped"},
		{"none", "true", "skipped"},
	} {
		t.Setenv(VariableServers, c.servers)
		t.Setenv("CI", c.ci)
		f, what := &fake{}, fmt.Sprintf("no server %d:\nrun make servers", i)
		Missing(f, "%s", what)
		Missing(f, "%s", what)
		if !f.ended(c.want, "run make servers") {
			t.Errorf("servers=%q CI=%q: %q, want it %s", c.servers, c.ci, f.outcome, c.want)
		}
		text, _ := os.ReadFile(file)
		lines := strings.Count(string(text), fmt.Sprintf("internal/tier\tno server %d: run make servers\n", i))
		if want := map[string]int{"skipped": 1}[c.want]; lines != want {
			t.Errorf("servers=%q CI=%q: %d lines of it, want %d:\n%s", c.servers, c.ci, lines, want, text)
		}
	}
}

func TestNightly(t *testing.T) {
	t.Setenv(VariableNightly, "")
	f := &fake{}
	if Nightly(f, "takes an hour"); !f.ended("skipped", "takes an hour") {
		t.Errorf("in the gate: %q", f.outcome)
	}
	t.Setenv(VariableNightly, "1")
	f = &fake{}
	if Nightly(f, "takes an hour"); f.outcome != "" || !IsNightly() {
		t.Errorf("at night: %q", f.outcome)
	}
}
