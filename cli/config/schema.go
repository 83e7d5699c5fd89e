package config

import "reflect"

// Kind is a value of the key kind of a Section, and the settings that belong to it.
type Kind struct {
	Name     string
	Settings any // a struct, or a pointer to one
}

// Schema returns a JSON Schema (2020-12) of settings. kinds has, by the key of each map of Sections, the possible kinds
// of its entries. describe returns the text for a field of a struct that has no tag doc; owner is the struct's import
// path and name, such as github.com/waybill-go/waybill/relay.Options.
func Schema(settings any, kinds map[string][]Kind, describe func(owner, field string) string) map[string]any {
	s := schema{kinds, describe, map[string]any{}}
	root := s.object(structOf(settings))
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$defs"] = s.defs
	return root
}

type schema struct {
	kinds    map[string][]Kind
	describe func(owner, field string) string
	defs     map[string]any
}

func structOf(v any) reflect.Type {
	t := reflect.TypeOf(v)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

const durationPattern = `0|-?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+`

// object is the schema of a struct.
func (s *schema) object(t reflect.Type) map[string]any {
	properties := map[string]any{}
	for _, f := range fieldsOf(t) {
		var p map[string]any
		if kinds, ok := s.kinds[f.key]; ok && f.typ.Kind() == reflect.Map && f.typ.Elem() == sectionType {
			p = map[string]any{"type": "object", "additionalProperties": s.section(f.key, kinds)}
		} else {
			p = s.value(f.typ)
		}
		if t == keptType {
			p["pattern"] = "^(forever|at_once|" + durationPattern + ")$"
		}
		owner := t
		if n := len(f.index) - 1; n > 0 {
			owner = t.FieldByIndex(f.index[:n]).Type
		}
		text := f.doc
		if text == "" && s.describe != nil && owner.Name() != "" {
			text = s.describe(owner.PkgPath()+"."+owner.Name(), t.FieldByIndex(f.index).Name)
		}
		if text != "" {
			p["description"] = text
		}
		properties[f.key] = p
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

// section is the schema of an entry whose settings depend on its kind.
func (s *schema) section(key string, kinds []Kind) map[string]any {
	var names, rules []any
	for _, k := range kinds {
		names = append(names, k.Name)
		one := s.object(structOf(k.Settings))
		one["properties"].(map[string]any)["kind"] = map[string]any{"const": k.Name}
		def := key + "." + k.Name
		s.defs[def] = one
		is := map[string]any{"properties": map[string]any{"kind": map[string]any{"const": k.Name}}, "required": []any{"kind"}}
		rules = append(rules, map[string]any{"if": is, "then": map[string]any{"$ref": "#/$defs/" + def}})
	}
	out := map[string]any{"type": "object", "required": []any{"kind"}, "properties": map[string]any{"kind": map[string]any{"enum": names}}}
	if len(rules) > 0 {
		out["allOf"] = rules
	}
	return out
}

// value is the schema of the values of a field.
func (s *schema) value(t reflect.Type) map[string]any {
	switch t {
	case secretType:
		file := map[string]any{"type": "object", "required": []any{"file"}, "additionalProperties": false, "properties": map[string]any{"file": map[string]any{"type": "string"}}}
		return map[string]any{"oneOf": []any{map[string]any{"type": "string"}, file}}
	case sectionType:
		return map[string]any{"type": "object"}
	case backoffType:
		name := map[string]any{"type": "string", "description": "name of an entry of " + PolicyKey}
		return map[string]any{"oneOf": []any{name, s.object(t)}}
	case durationType:
		return map[string]any{"type": "string", "pattern": "^(" + durationPattern + ")$"}
	}
	switch t.Kind() { //nolint:exhaustive // see settable
	case reflect.Pointer:
		return s.value(t.Elem())
	case reflect.Struct:
		return s.object(t)
	case reflect.Map:
		if t.Elem() == backoffType {
			return map[string]any{"type": "object", "additionalProperties": s.object(t.Elem())}
		}
		return map[string]any{"type": "object", "additionalProperties": s.value(t.Elem())}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.value(t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": []any{"integer", "string"}, "pattern": `^-?[0-9][0-9_]*( *[KMG]iB)?$`}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Uint8:
		var names []any
		for _, name := range namesOf(t) {
			if name != "" {
				names = append(names, name)
			}
		}
		return map[string]any{"enum": names}
	}
	return map[string]any{"type": "string"}
}
