package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
)

const (
	maxFileBytes = 1 << 20
	// EnvPrefix begins the names of the variables that hold settings.
	EnvPrefix = "WAYBILL_"
)

// Sources says where settings come from.
type Sources struct {
	// File is the path of a YAML file; empty = none.
	File string
	// Environ are variables as NAME=value. Those that begin with EnvPrefix hold settings; two underscores divide
	// the keys of a path. Skip are names, or beginnings of names that end in an underscore, that hold no settings.
	Environ []string
	Skip    []string
	// Set are settings as path=value, in which a dot divides the keys. A later one wins.
	Set []string
}

// Loaded are the settings of all sources.
type Loaded struct{ root *node }

// Section is a part of the settings whose struct depends on one of its keys.
type Section struct {
	path     string
	node     *node
	policies *node
}

// Load reads all sources. The error is an [*waybill.InvalidError] with all problems. It comes with the valid settings,
// for Decode to find the other problems, unless the file cannot be read, or is no YAML.
func Load(s Sources) (*Loaded, error) {
	root := &node{origin: "the configuration", kind: dict}
	var problems []problem
	if s.File != "" {
		text, err := readFile(s.File)
		if err != nil {
			return nil, waybill.Invalid(subject, err.Error())
		}
		name := filepath.Base(s.File)
		root, problems = parse(text, func(line int) string { return fmt.Sprintf("%s:%d", name, line) })
		switch {
		case root == nil:
			return nil, invalid(problems)
		case root.kind == null:
			root.kind = dict
		case root.kind != dict && len(problems) == 0:
			problems = append(problems, problem{root.origin, "", "must be a mapping, not " + root.kind.String()})
		}
	}
	for _, v := range slices.Sorted(slices.Values(s.Environ)) {
		name, value, _ := strings.Cut(v, "=")
		path, ok := strings.CutPrefix(name, EnvPrefix)
		if !ok || serviceLink(path, value) || slices.ContainsFunc(s.Skip, func(skip string) bool {
			return name == skip || strings.HasSuffix(skip, "_") && strings.HasPrefix(name, skip)
		}) {
			continue
		}
		if err := root.set(root.spell(strings.Split(strings.ToLower(path), "__")), value, "environment variable "+name); err != nil {
			problems = append(problems, problem{text: err.Error()})
		}
	}
	for _, v := range s.Set {
		path, value, ok := strings.Cut(v, "=")
		if !ok || path == "" {
			problems = append(problems, problem{"--set " + clip(path), "", "must be path=value, such as stores.shop.kind=postgres"})
			continue
		}
		if err := root.set(strings.Split(path, "."), value, "--set "+path); err != nil {
			problems = append(problems, problem{text: err.Error()})
		}
	}
	return &Loaded{root}, invalid(problems)
}

var (
	linkedHost = regexp.MustCompile(`^([A-Z0-9_]+_)?SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$`)
	linkedPort = regexp.MustCompile(`^([A-Z0-9_]+?_)??PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$`)
)

// serviceLink reports whether a variable is one that Kubernetes puts into each pod beside a Service named waybill, or
// waybill and more. They hold no settings.
func serviceLink(name, value string) bool {
	switch {
	case strings.Contains(name, "__"): // a setting below another one
		return false
	case linkedHost.MatchString(name):
		return true
	}
	m := linkedPort.FindStringSubmatch(name)
	return m != nil && (m[5] != "" || strings.Contains(value, "://"))
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the user names it
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the configuration: %w", err)
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxFileBytes)
	}
	return text, nil
}

// spell returns the path as the file spells it: variables have no dashes and no capitals.
func (n *node) spell(path []string) []string {
	for i, key := range path {
		if n == nil {
			break
		}
		for _, have := range n.keys {
			if strings.ReplaceAll(strings.ToLower(have), "-", "_") == key {
				path[i] = have
			}
		}
		n = n.at(path[i : i+1])
	}
	return path
}

const subject = "waybill: configuration"

func invalid(problems []problem) error {
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.String()
	}
	return waybill.Invalid(subject, texts...)
}

// Decode sets the struct that into points to from the settings. Sections keep their nodes for later. The error is an
// [*waybill.InvalidError] with all problems; the struct then holds the valid settings.
func (l *Loaded) Decode(into any) error {
	d := decoder{policies: l.root.fields[PolicyKey]}
	d.into(l.root, "", reflect.ValueOf(into).Elem())
	return invalid(d.problems)
}

// Where returns the file and line, variable or flag that a path was set with, such as relays.shop.routes[0].weight; for
// a default that of the nearest mapping around it.
func (l *Loaded) Where(path string) string {
	n, where := l.root, l.root.origin
	for key := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		if n = n.at([]string{key}); n == nil {
			break
		}
		where = n.origin
	}
	return where
}

// Problem names a problem of a path by its place.
func (l *Loaded) Problem(path, format string, a ...any) string {
	return problem{l.Where(path), path, fmt.Sprintf(format, a...)}.String()
}

// Path is where the section stands; IsZero reports that there is none.
func (s Section) Path() string { return s.path }

// IsZero reports whether the section is missing.
func (s Section) IsZero() bool { return s.node == nil }

// Text returns the value of a key, empty if it is missing or no text.
func (s Section) Text(key string) string {
	if s.node == nil || s.node.fields[key] == nil {
		return ""
	}
	return s.node.fields[key].text
}

// Decode is Loaded.Decode for a section, whose keys in skip were read otherwise.
func (s Section) Decode(into any, skip ...string) error {
	n := *s.node
	n.keys = slices.DeleteFunc(slices.Clone(n.keys), func(k string) bool { return slices.Contains(skip, k) })
	d := decoder{policies: s.policies}
	d.into(&n, s.path, reflect.ValueOf(into).Elem())
	return invalid(d.problems)
}
