package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli/config"
)

// FuzzLoad reads anything as a file with settings. Each problem is that of the user, and has a bound.
func FuzzLoad(f *testing.F) { // SE-08
	for _, text := range []string{
		"", "a: 1", "- a", "a: &x [*x]", "a: {b: {c: [1, {d: 2}]}}", "a: |\n  b", "a: !!binary AAAA", "? {a: b}\n: c", "<<: {a: 1}", "\x00", "a: 1\na: 2",
		"a: &b [*b, *b]", "a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]", "name: a\nwait: 1s\nlist: [{n: 1}]", "%YAML 1.1\n---\na", "--- a\n--- b",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := config.Load(config.Sources{File: file, Set: []string{"name=set"}})
		if err == nil {
			var into struct {
				Name string
				Wait time.Duration
				List []struct{ N int }
			}
			err = got.Decode(&into)
		}
		if err != nil && (!errors.Is(err, waybill.ErrInvalid) || len(err.Error()) > 1000+400*(2+strings.Count(text, "\n")+len(text))) {
			t.Errorf("%d bytes: %v", len(err.Error()), err)
		}
	})
}
