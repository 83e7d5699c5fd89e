package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
)

// PolicyKey is the key of the named retry policies. A [waybill.Backoff] anywhere else can be the name of one.
const PolicyKey = "retry_policies"

// decoder fills structs from nodes, and notes every problem.
type decoder struct {
	policies *node // nil if there are none
	problems []problem
}

func (d *decoder) bad(n *node, path, format string, a ...any) {
	d.problems = append(d.problems, problem{n.origin, path, fmt.Sprintf(format, a...)})
}

var (
	secretType   = reflect.TypeFor[Secret]()
	sectionType  = reflect.TypeFor[Section]()
	durationType = reflect.TypeFor[time.Duration]()
	keptType     = reflect.TypeFor[waybill.Retention]()
	backoffType  = reflect.TypeFor[waybill.Backoff]()
)

// keptWords are the durations of a retention that have a name.
var keptWords = map[string]time.Duration{"forever": waybill.Forever, "at_once": waybill.AtOnce}

// into sets v from n.
func (d *decoder) into(n *node, path string, v reflect.Value) {
	switch v.Type() {
	case secretType:
		if problem := v.Addr().Interface().(*Secret).read(n); problem != "" {
			d.bad(n, path, "%s", problem)
		}
		return
	case sectionType:
		if n.kind == null {
			return // left out
		}
		if n.kind != dict {
			d.bad(n, path, "must be a mapping, not %s", n.kind)
			return
		}
		v.Set(reflect.ValueOf(Section{path: path, node: n, policies: d.policies}))
		return
	case backoffType:
		if n.kind == scalar && !strings.HasPrefix(path, PolicyKey+".") {
			d.policy(n, path, v)
			return
		}
	}
	if n.kind == null {
		v.SetZero() // the default
		return
	}
	switch v.Kind() { //nolint:exhaustive // what is left is a scalar
	case reflect.Struct:
		d.fields(n, path, v)
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		d.into(n, path, p.Elem())
		v.Set(p)
	case reflect.Map:
		d.entries(n, path, v)
	case reflect.Slice:
		if n.kind != list {
			d.bad(n, path, "must be a list, not %s", n.kind)
			return
		}
		s := reflect.MakeSlice(v.Type(), len(n.items), len(n.items))
		for i, item := range n.items {
			d.into(item, fmt.Sprintf("%s[%d]", path, i), s.Index(i))
		}
		v.Set(s)
	default:
		if n.kind != scalar {
			d.bad(n, path, "must be a value, not %s", n.kind)
			return
		}
		if problem := setScalar(v, n.text); problem != "" {
			d.bad(n, path, "%s", problem)
		}
	}
}

func (d *decoder) entries(n *node, path string, v reflect.Value) {
	if n.kind != dict {
		d.bad(n, path, "must be a mapping, not %s", n.kind)
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.keys))
	for _, key := range n.keys {
		e := reflect.New(v.Type().Elem()).Elem()
		d.into(n.fields[key], join(path, key), e)
		m.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), e)
	}
	v.Set(m)
}

func (d *decoder) fields(n *node, path string, v reflect.Value) {
	if n.kind != dict {
		d.bad(n, path, "must be a mapping, not %s", n.kind)
		return
	}
	fields := fieldsOf(v.Type())
	for _, key := range n.keys {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			d.bad(n.fields[key], join(path, key), "is unknown%s", suggest(key, fields))
			continue
		}
		f := v.FieldByIndex(fields[i].index)
		if v.Type() == keptType {
			d.kept(n.fields[key], join(path, key), f)
			continue
		}
		d.into(n.fields[key], join(path, key), f)
	}
}

// policy sets a back-off to the retry policy that n names. Mistakes in a policy are told where it stands.
func (d *decoder) policy(n *node, path string, v reflect.Value) {
	if d.policies != nil && d.policies.fields[n.text] != nil {
		of := decoder{}
		of.into(d.policies.fields[n.text], join(PolicyKey, n.text), v)
		return
	}
	if d.policies == nil || len(d.policies.keys) == 0 {
		d.bad(n, path, "there is no retry policy %q: add it to %s, or write a mapping such as {base: 1s, attempts: 5}", clip(n.text), PolicyKey)
		return
	}
	names := strings.Join(slices.Sorted(slices.Values(d.policies.keys)), ", ")
	d.bad(n, path, "there is no retry policy %q: choose of %s, or add it to %s", clip(n.text), names, PolicyKey)
}

// kept sets a field of a retention.
func (d *decoder) kept(n *node, path string, v reflect.Value) {
	if n.kind != scalar {
		d.into(n, path, v)
		return
	}
	t, ok := keptWords[n.text]
	if !ok {
		var err error
		if t, err = time.ParseDuration(n.text); err != nil {
			d.bad(n, path, "%q is no retention: write forever or at_once, or a duration such as 24h", clip(n.text))
			return
		}
	}
	v.SetInt(int64(t))
}

// setScalar sets v to a text, and returns the fault of the text.
func setScalar(v reflect.Value, text string) string {
	if v.Type() == durationType {
		t, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Sprintf("%q is no duration: write 500ms, 10s, 5m or 24h", clip(text))
		}
		v.SetInt(int64(t))
		return ""
	}
	if v.Kind() == reflect.Uint8 {
		return setName(v, text)
	}
	switch v.Kind() { //nolint:exhaustive // see settable
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Sprintf("%q is neither true nor false", clip(text))
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		i, ok := integer(text)
		if !ok {
			return fmt.Sprintf("%q is no whole number", clip(text))
		}
		v.SetInt(i)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Sprintf("%q is no number", clip(text))
		}
		v.SetFloat(f)
	default:
		return "cannot be set"
	}
	return ""
}

// integer reads a whole number. It may end in KiB, MiB or GiB.
func integer(text string) (int64, bool) {
	shift := 0
	for unit, bits := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if rest, ok := strings.CutSuffix(text, unit); ok {
			text, shift = strings.TrimSpace(rest), bits
			break
		}
	}
	i, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	if err != nil || i<<shift>>shift != i {
		return 0, false
	}
	return i << shift, true
}

// setName sets an enumeration by the name of one of its values.
func setName(v reflect.Value, text string) string {
	want := strings.ToLower(strings.NewReplacer(" ", "_", "-", "_").Replace(text))
	names := namesOf(v.Type())
	for i, name := range names {
		if name == want && name != "" {
			v.SetUint(uint64(i))
			return ""
		}
	}
	return fmt.Sprintf("%q is unknown: choose %s", clip(text), strings.Join(slices.DeleteFunc(names, func(s string) bool { return s == "" }), ", "))
}

// namesOf returns the names of an enumeration's values; one without a name has "".
func namesOf(t reflect.Type) []string {
	var names []string
	for i := range 32 {
		v := reflect.New(t).Elem()
		v.SetUint(uint64(i))
		s, ok := reflect.TypeAssert[fmt.Stringer](v)
		if !ok {
			break
		}
		name := strings.ToLower(strings.NewReplacer(" ", "_", "-", "_").Replace(s.String()))
		if name == "unknown" || strings.Contains(name, "(") {
			name = ""
		}
		names = append(names, name)
	}
	return names
}

func clip(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}
