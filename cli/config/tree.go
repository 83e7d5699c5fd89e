package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

type kind uint8

const (
	null kind = iota
	scalar
	list
	dict
)

func (k kind) String() string { return [...]string{"nothing", "a value", "a list", "a mapping"}[k] }

// node is a setting, or a tree of them, with where it stands.
type node struct {
	origin string
	kind   kind
	text   string  // of a scalar
	items  []*node // of a list
	keys   []string
	fields map[string]*node // of a dict
}

// field returns the node for a key of a dict, which it makes if it is missing.
func (n *node) field(key, origin string) *node {
	if n.kind != dict {
		*n = node{origin: origin, kind: dict}
	}
	if n.fields == nil {
		n.fields = map[string]*node{}
	}
	if f := n.fields[key]; f != nil {
		return f
	}
	f := &node{origin: origin}
	n.keys = append(n.keys, key)
	n.fields[key] = f
	return f
}

// at returns the node of a path, nil if there is none.
func (n *node) at(path []string) *node {
	for _, key := range path {
		switch {
		case n == nil:
			return nil
		case n.kind == list:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(n.items) {
				return nil
			}
			n = n.items[i]
		default:
			n = n.fields[key]
		}
	}
	return n
}

// set gives the setting at path a value, which is YAML.
func (n *node) set(path []string, text, origin string) error {
	value, problems := parse([]byte(text), func(int) string { return origin })
	if len(problems) > 0 {
		return fmt.Errorf("%s: %s", origin, problems[0].text)
	}
	for _, key := range path {
		if n.kind != list {
			n = n.field(key, origin)
			continue
		}
		i, err := strconv.Atoi(key)
		if err != nil || i < 0 || i > len(n.items) {
			return fmt.Errorf("%s: %q is no place in a list of %d: give a number from 0 to %d", origin, key, len(n.items), len(n.items))
		}
		if i == len(n.items) {
			n.items = append(n.items, &node{origin: origin})
		}
		n = n.items[i]
	}
	*n = *value
	return nil
}

// problem is a mistake in the settings.
type problem struct{ origin, path, text string }

func (p problem) String() string {
	parts := slices.DeleteFunc([]string{p.origin, p.path, p.text}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// parse reads a YAML document, nil if it is none. where names a line of it.
func parse(text []byte, where func(line int) string) (*node, []problem) {
	root := &node{origin: where(1)}
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey()) // treeMaker tells them, and goes on
	if err != nil {
		return nil, []problem{{where(errorLine(err)), "", "is not YAML: " + errorText(err)}}
	}
	t := treeMaker{where: where, anchors: map[string]ast.Node{}, said: map[ast.Node]bool{}}
	docs := 0
	for _, d := range file.Docs {
		if d.Body == nil {
			continue
		}
		if docs++; docs > 1 {
			t.bad(d.Body, "", "is a second document: leave one")
			break
		}
		t.fill(root, d.Body, "", 0)
	}
	return root, t.problems
}

// treeMaker makes the tree of a document.
type treeMaker struct {
	where    func(line int) string
	anchors  map[string]ast.Node
	made     int // nodes
	problems []problem
	said     map[ast.Node]bool // what the problems are about: an alias brings a node to many places
}

func (t *treeMaker) line(n ast.Node) string {
	if tok := n.GetToken(); tok != nil && tok.Position != nil {
		return t.where(tok.Position.Line)
	}
	return t.where(1)
}

func (t *treeMaker) bad(n ast.Node, path, format string, a ...any) {
	if !t.said[n] {
		t.said[n] = true
		t.problems = append(t.problems, problem{t.line(n), path, fmt.Sprintf(format, a...)})
	}
}

// A few lines of aliases can make more settings than a machine has memory for.
const (
	maxDepth = 32
	maxNodes = 100_000
)

func (t *treeMaker) fill(out *node, from ast.Node, path string, depth int) {
	out.origin = t.line(from)
	if depth > maxDepth {
		t.bad(from, path, "is nested more than %d deep", maxDepth)
		return
	}
	if t.made++; t.made > maxNodes {
		if t.made == maxNodes+1 {
			t.bad(from, path, "is more than %d settings, with what aliases repeat: leave some out", maxNodes)
		}
		return
	}
	switch v := from.(type) {
	case *ast.AnchorNode:
		t.fill(out, v.Value, path, depth)
		t.anchors[v.Name.GetToken().Value] = v.Value
	case *ast.AliasNode:
		target, ok := t.anchors[v.Value.GetToken().Value]
		if !ok {
			t.bad(from, path, "no anchor &%s stands before it", v.Value.GetToken().Value)
			return
		}
		t.fill(out, target, path, depth+1)
		out.origin = t.line(from)
	case *ast.TagNode:
		t.fill(out, v.Value, path, depth+1)
	case *ast.NullNode:
	case *ast.MappingNode:
		t.mapping(out, v.Values, path, depth)
	case *ast.MappingValueNode:
		t.mapping(out, []*ast.MappingValueNode{v}, path, depth)
	case *ast.SequenceNode:
		out.kind = list
		for i, item := range v.Values {
			n := &node{}
			t.fill(n, item, fmt.Sprintf("%s[%d]", path, i), depth+1)
			out.items = append(out.items, n)
		}
	case *ast.LiteralNode:
		out.kind, out.text = scalar, v.Value.Value
	case *ast.StringNode:
		out.kind, out.text = scalar, v.Value
	default:
		out.kind, out.text = scalar, from.GetToken().Value
	}
}

func (t *treeMaker) mapping(out *node, values []*ast.MappingValueNode, path string, depth int) {
	out.kind = dict
	for _, v := range values {
		if v.Key.IsMergeKey() {
			t.bad(v, path, "merge keys (<<) are not supported: repeat the settings, or use an alias for the whole value")
			continue
		}
		key := v.Key.GetToken().Value
		at := join(path, key)
		if old := out.fields[key]; old != nil {
			t.bad(v.Key, at, "is given twice; first at %s", old.origin)
			continue
		}
		n := out.field(key, t.line(v.Key))
		t.fill(n, v.Value, at, depth+1)
		n.origin = t.line(v.Key)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
