package config

import (
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// Part is a named piece of what Print shows: a struct, or a Part inside it.
type Part struct {
	Key   string
	Value any
}

// Inline is the Value of a Part without a key: its fields stand beside the parts around it.
type Inline struct{ Value any }

// Print returns settings as YAML, with secrets and the passwords in URLs hidden, and empty settings left out.
func Print(parts ...Part) (string, error) {
	out, err := yaml.MarshalWithOptions(show(parts), yaml.IndentSequence(true))
	return string(out), err
}

func show(parts []Part) yaml.MapSlice {
	var out yaml.MapSlice
	for _, p := range parts {
		switch value := p.Value.(type) {
		case []Part:
			if inner := show(value); len(inner) > 0 {
				out = append(out, yaml.MapItem{Key: p.Key, Value: inner})
			}
		case Inline:
			if inner, ok := plain(reflect.ValueOf(value.Value)).(yaml.MapSlice); ok {
				out = append(out, inner...)
			}
		default:
			if v := plain(reflect.ValueOf(value)); v != nil {
				out = append(out, yaml.MapItem{Key: p.Key, Value: v})
			}
		}
	}
	return out
}

// plain returns the YAML value of v; nil if v is empty.
func plain(v reflect.Value) any {
	if !v.IsValid() || v.IsZero() {
		return nil
	}
	switch x := v.Interface().(type) {
	case Secret:
		if x.file != "" {
			return yaml.MapSlice{{Key: "file", Value: x.file}}
		}
		return hidden
	case time.Duration:
		return x.String()
	case Section:
		return nil
	}
	switch v.Kind() { //nolint:exhaustive // what is left is a scalar
	case reflect.Pointer:
		return plain(v.Elem())
	case reflect.Struct:
		var out yaml.MapSlice
		for _, f := range fieldsOf(v.Type()) {
			x := plain(v.FieldByIndex(f.index))
			for word, t := range keptWords {
				if v.Type() == keptType && v.FieldByIndex(f.index).Int() == int64(t) {
					x = word
				}
			}
			if x != nil {
				out = append(out, yaml.MapItem{Key: f.key, Value: x})
			}
		}
		if out == nil {
			return nil
		}
		return out
	case reflect.Slice:
		var out []any
		for i := range v.Len() {
			x := plain(v.Index(i))
			if x == nil {
				x = yaml.MapSlice{}
			}
			out = append(out, x)
		}
		return out
	case reflect.Map:
		var out yaml.MapSlice
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			if x := plain(v.MapIndex(k)); x != nil {
				out = append(out, yaml.MapItem{Key: k.String(), Value: x})
			}
		}
		return out
	case reflect.Uint8:
		return namesOf(v.Type())[v.Uint()]
	case reflect.String:
		return hidePassword(v.String())
	}
	return v.Interface()
}

// hidePassword hides the password of a URL.
func hidePassword(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return hidden
	}
	if _, has := u.User.Password(); has {
		return u.Redacted()
	}
	return s
}
