package config

import (
	"crypto/tls"
	"log/slog"
	"reflect"
	"strings"
	"unicode"

	"github.com/waybill-go/waybill/hlc"
)

// field is a setting of a struct.
type field struct {
	key   string
	index []int
	typ   reflect.Type
	doc   string
}

// noKey are types that text cannot hold, although their fields could.
var noKey = map[reflect.Type]bool{
	reflect.TypeFor[*tls.Config](): true, reflect.TypeFor[*slog.Logger](): true, reflect.TypeFor[*hlc.Clock](): true,
}

// fieldsOf returns the settings of a struct. The tag config names a key, "-" for none; the tag doc describes it.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		key := f.Tag.Get("config")
		switch {
		case key == "-" || !f.IsExported() || !settable(f.Type):
		case f.Anonymous && key == "" && f.Type.Kind() == reflect.Struct && f.Type != secretType && f.Type != sectionType:
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				out = append(out, inner)
			}
		default:
			if key == "" {
				key = Key(f.Name)
			}
			out = append(out, field{key, []int{i}, f.Type, f.Tag.Get("doc")})
		}
	}
	return dropHidden(out)
}

// dropHidden leaves out embedded fields that an outer one hides.
func dropHidden(all []field) []field {
	var out []field
	for _, f := range all {
		hidden := false
		for _, g := range all {
			hidden = hidden || g.key == f.key && len(g.index) < len(f.index)
		}
		if !hidden {
			out = append(out, f)
		}
	}
	return out
}

func settable(t reflect.Type) bool {
	if noKey[t] {
		return false
	}
	switch t.Kind() { //nolint:exhaustive // nothing else can be written as text
	case reflect.Pointer, reflect.Slice:
		return settable(t.Elem())
	case reflect.Map:
		return t.Key().Kind() == reflect.String && settable(t.Elem())
	case reflect.Struct:
		return t == secretType || t == sectionType || len(fieldsOf(t)) > 0
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return true
	case reflect.Uint8:
		return len(namesOf(t)) > 0
	}
	return false
}

// Key returns the key for the name of a field: MaxMessageBytes is max_message_bytes.
func Key(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// suggest names a key that is spelled like it, or all.
func suggest(key string, fields []field) string {
	best, least := "", 3
	var all []string
	for _, f := range fields {
		all = append(all, f.key)
		if n := distance(key, f.key); n < least {
			best, least = f.key, n
		}
	}
	if best != "" {
		return ": did you mean " + best + "?"
	}
	return ": choose of " + strings.Join(all, ", ")
}

// distance is the Levenshtein distance: how many letters to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
