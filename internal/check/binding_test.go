package check_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill/internal/check"
)

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		binding, topic string
		want           bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.b.c", false},
		{"a.b.c", "a.b", false},
		{"a.*", "a.b", true},
		{"a.*", "a", false},
		{"a.*", "a.b.c", false},
		{"*", "a", true},
		{"*.*", "a.b", true},
		{"#", "a", true},
		{"#", "a.b.c", true},
		{"a.#", "a", true},
		{"a.#", "a.b.c", true},
		{"a.#", "b", false},
		{"#.c", "c", true},
		{"#.c", "a.b.c", true},
		{"#.c", "a.c.b", false},
		{"a.#.c", "a.c", true},
		{"a.#.c", "a.b.c.c", true},
		{"a.#.#", "a", true},
		{"#.b.*", "a.b.b.c", true},
		{"#.*", "a", true},
		{"*.#.*", "a", false},
		{"*.#.*", "a.b", true},
		{"a*", "ab", false},
	} {
		if got := check.Matches(strings.Split(c.binding, "."), strings.Split(c.topic, ".")); got != c.want {
			t.Errorf("Matches(%q, %q) = %v", c.binding, c.topic, got)
		}
	}
	many := strings.Split(strings.Repeat("#.a.", 60)+"b", ".")
	if check.Matches(many, strings.Split(strings.Repeat("a.", 120)+"c", ".")) {
		t.Error("matched")
	}
}

// naive is Matches as one would explain it.
func naive(binding, topic []string) bool {
	switch {
	case len(binding) == 0:
		return len(topic) == 0
	case binding[0] == "#":
		return naive(binding[1:], topic) || len(topic) > 0 && naive(binding, topic[1:])
	case len(topic) == 0:
		return false
	}
	return (binding[0] == "*" || binding[0] == topic[0]) && naive(binding[1:], topic[1:])
}

func TestMatchesAgainstNaive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		binding := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "*", "#"}), 1, 6).Draw(t, "binding")
		topic := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 1, 8).Draw(t, "topic")
		if got, want := check.Matches(binding, topic), naive(binding, topic); got != want {
			t.Fatalf("Matches is %v, want %v", got, want)
		}
	})
}
