package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli/config"
)

type inner struct {
	URL    config.Secret
	Order  waybill.Order
	Wait   time.Duration
	Most   int
	Native waybill.Limits
}

type settings struct {
	Name   string
	Things map[string]inner
	List   []inner
	Any    config.Section
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "waybill.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// OP-02: one name in a file, in the environment and as a flag; a flag wins over a variable, that over the file.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	l, err := config.Load(config.Sources{
		File: write(t, "name: file\nthings:\n  a-b:\n    url: postgres://u:secret@h/d\n    order: per_key\n    wait: 5s\n"+
			"    most: 1KiB\n    native:\n      max_headers: 3\nlist:\n- most: 1\nany:\n  kind: x\n  most: 7\n"),
		Environ: []string{"WAYBILL_THINGS__A_B__WAIT=7s", "WAYBILL_THINGS__A_B__MOST=2", "WAYBILL_LIST__0__WAIT=1ms", "WAYBILL_TEST_X=y", "HOME=/"},
		Skip:    []string{"WAYBILL_TEST_"},
		Set:     []string{"things.a-b.most=3", "list.1.most=4"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got settings
	if err := l.Decode(&got); err != nil {
		t.Fatal(err)
	}
	a := got.Things["a-b"]
	if url, err := a.URL.Value(); err != nil || url != "postgres://u:secret@h/d" {
		t.Error(url, err)
	}
	if a.Wait != 7*time.Second || a.Most != 3 || a.Native.MaxHeaders != 3 || got.Name != "file" || len(got.List) != 2 || got.List[1].Most != 4 || got.List[0].Wait != time.Millisecond {
		t.Errorf("%+v", got)
	}
	var section inner
	if got.Any.Text("kind") != "x" {
		t.Error("no kind")
	}
	if err := got.Any.Decode(&section, "kind"); err != nil || section.Most != 7 {
		t.Error(section, err)
	}
	if w := l.Where("things.a-b.wait"); w != "environment variable WAYBILL_THINGS__A_B__WAIT" {
		t.Error(w)
	}
	text, err := config.Print(config.Part{Key: "", Value: got.Things}, config.Part{Key: "x", Value: []config.Part{{Key: "y", Value: got.List}}})
	if err != nil {
		t.Fatal(err)
	}
	want := "\"\":\n  a-b:\n    url: \"********\"\n    wait: 7s\n    most: 3\n    native:\n      max_headers: 3\nx:\n  \"y\":\n    - wait: 1ms\n      most: 1\n    - most: 4\n"
	if diff := cmp.Diff(want, text); diff != "" {
		t.Error(diff)
	}
}

// OP-02: everything that is wrong is told at once, each with its place.
func TestProblems(t *testing.T) {
	t.Parallel()
	l, err := config.Load(config.Sources{
		File: write(t, "name: [a]\nthings:\n  a:\n    ordr: per_key\n    order: random\n    wait: 5\n    url: {file: /missing}\nlist: 3\n"),
		Set:  []string{"nam=x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = l.Decode(&settings{})
	e, ok := err.(*waybill.InvalidError) //nolint:errorlint // it is not wrapped
	if !ok {
		t.Fatal(err)
	}
	want := []string{
		"waybill.yaml:1: name: must be a value, not a list",
		"waybill.yaml:4: things.a.ordr: is unknown: did you mean order?",
		"waybill.yaml:5: things.a.order: \"random\" is unknown: choose per_key, best_effort, best_effort_hlc",
		"waybill.yaml:6: things.a.wait: \"5\" is no duration: write 500ms, 10s, 5m or 24h",
		"waybill.yaml:7: things.a.url: cannot read the file: open /missing: no such file or directory",
		"waybill.yaml:8: list: must be a list, not a value",
		"--set nam: nam: is unknown: did you mean name?",
	}
	if diff := cmp.Diff(want, e.Problems); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"a: 1\na: 2\n", "a:\n\t- b", "a: *x\n", "<<: {a: 1}\n", "- a\n", "a: 1\n---\nb: 2\n"} {
		if l, err := config.Load(config.Sources{File: write(t, text)}); err == nil {
			t.Errorf("%q: no error; %v", text, l)
		} else {
			t.Log(err)
		}
	}
}

// A key that is given twice hides no other problem. The first one counts.
func TestKeyGivenTwice(t *testing.T) {
	t.Parallel()
	l, err := config.Load(config.Sources{File: write(t, "name: a\nname: b\nthings:\n  a: {ordr: x}\n  a: {wait: 1s}\n")})
	var problems []string
	for _, err := range []error{err, l.Decode(&settings{})} {
		if e, ok := errors.AsType[*waybill.InvalidError](err); ok {
			problems = append(problems, e.Problems...)
		}
	}
	want := []string{
		"waybill.yaml:2: name: is given twice; first at waybill.yaml:1", "waybill.yaml:5: things.a: is given twice; first at waybill.yaml:4",
		"waybill.yaml:4: things.a.ordr: is unknown: did you mean order?",
	}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Error(diff)
	}
}

// A retention is a duration or one of two words; other durations know none.
func TestRetentionInWords(t *testing.T) {
	t.Parallel()
	type store struct {
		Retention waybill.Retention
		Every     time.Duration
	}
	read := func(text string) (s store, err error) {
		l, err := config.Load(config.Sources{File: write(t, text)})
		if err != nil {
			t.Fatal(err)
		}
		return s, l.Decode(&s)
	}
	s, err := read("retention: {published: forever, abandoned: at_once, cancelled: 168h}\n")
	if want := (waybill.Retention{Published: waybill.Forever, Abandoned: waybill.AtOnce, Cancelled: 168 * time.Hour}); err != nil || s.Retention != want {
		t.Fatalf("got %+v, %v; want %+v", s.Retention, err, want)
	}
	shown, err := config.Print(config.Part{Key: "shop", Value: s})
	if again, readErr := read(strings.ReplaceAll(shown, "shop:\n", "")); err != nil || readErr != nil || again != s || !strings.Contains(shown, "published: forever") {
		t.Errorf("printed as %q, %v; read back as %+v, %v", shown, err, again, readErr)
	}
	if _, err := read("every: forever\n"); err == nil {
		t.Error("a duration that is no retention can be forever")
	}
	if _, err := read("retention: {published: always}\n"); err == nil || !strings.Contains(err.Error(), "forever or at_once") {
		t.Errorf("a wrong word is answered with %v", err)
	}
}

// A back-off can be the name of a retry policy, in the file, in a variable and in a section of a kind.
func TestNamedRetryPolicies(t *testing.T) {
	t.Parallel()
	type queue struct{ Retry, InProcess *waybill.Backoff }
	type all struct {
		RetryPolicies map[string]waybill.Backoff
		Queues        []queue
		Any           config.Section
	}
	read := func(text string, environ ...string) (a all, err error) {
		l, err := config.Load(config.Sources{File: write(t, text), Environ: environ})
		if err != nil {
			t.Fatal(err)
		}
		return a, l.Decode(&a)
	}
	const policies = "retry_policies:\n  slow: {kind: schedule, delays: [10m, 1h]}\n  few: {base: 5s, attempts: 3}\n"
	a, err := read(policies+"queues:\n- {retry: slow, in_process: few}\n- {retry: {base: 2s}}\nany: {kind: x, retry: few}\n", "WAYBILL_QUEUES__1__IN_PROCESS=few")
	if err != nil {
		t.Fatal(err)
	}
	slow := &waybill.Backoff{Kind: waybill.BackoffDelays, Delays: []time.Duration{10 * time.Minute, time.Hour}}
	few := &waybill.Backoff{Base: 5 * time.Second, Attempts: 3}
	if d := cmp.Diff([]queue{{slow, few}, {&waybill.Backoff{Base: 2 * time.Second}, few}}, a.Queues); d != "" {
		t.Error(d)
	}
	var section queue
	if err := a.Any.Decode(&section, "kind"); err != nil || !cmp.Equal(section.Retry, few) {
		t.Errorf("in a section: %+v, %v", section.Retry, err)
	}
	shown, err := config.Print(config.Part{Key: config.PolicyKey, Value: a.RetryPolicies}, config.Part{Key: "queues", Value: a.Queues})
	if again, readErr := read(shown); err != nil || readErr != nil || !cmp.Equal(again.Queues, a.Queues) || !cmp.Equal(again.RetryPolicies, a.RetryPolicies) {
		t.Errorf("printed as %s, %v; read back as %+v, %v", shown, err, again, readErr)
	}

	for text, want := range map[string]string{
		policies + "queues: [{retry: slov}]\n":                    `waybill.yaml:4: queues[0].retry: there is no retry policy "slov": choose of few, slow, or add it to retry_policies`,
		"queues: [{retry: slow}]\n":                               `queues[0].retry: there is no retry policy "slow": add it to retry_policies, or write a mapping`,
		"retry_policies: {a: {base: 1s}, b: a}\n":                 "retry_policies.b: must be a mapping, not a value",
		"retry_policies: {a: {bass: 1s}}\nqueues: [{retry: a}]\n": "waybill.yaml:1: retry_policies.a.bass: is unknown: did you mean base?",
		policies + "queues: [{retry: [slow]}]\n":                  "queues[0].retry: must be a mapping, not a list",
	} {
		_, err := read(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "queues[0].retry.bass") {
			t.Errorf("%s is answered with %v; want %s", text, err, want)
		}
	}
}

// A few lines whose aliases make more settings than a machine can hold are refused, as is an alias within what it
// stands for. Each is one problem, however many places it is in.
func TestAliasesMakeFewSettings(t *testing.T) { // SE-08
	t.Parallel()
	bomb := []string{"a0: &a0 [x, x, x, x, x, x, x, x, x, x]"}
	for i := range 12 {
		bomb = append(bomb, fmt.Sprintf("a%d: &a%d [%s]", i+1, i+1, strings.Join(slices.Repeat([]string{fmt.Sprint("*a", i)}, 10), ", ")))
	}
	for _, c := range []struct {
		text, want string
		times      int
	}{
		{strings.Join(bomb, "\n"), "is more than 100000 settings", 1},
		{"a: &b [*b, *b]", "no anchor &b stands before it", 2},
		{"a: &b {c: [*b]}", "no anchor &b stands before it", 1},
		{"a: &b " + strings.Repeat("[", 32) + strings.Repeat("]", 32) + "\nc: [*b, *b]", "is nested more than 32 deep", 1},
	} {
		file := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := config.Load(config.Sources{File: file})
		if err == nil || strings.Count(err.Error(), c.want) != c.times || len(err.Error()) > 1000 {
			t.Errorf("%.60q: %.300v; want %d times %q", c.text, err, c.times, c.want)
		}
	}
}
