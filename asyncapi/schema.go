package asyncapi

import (
	"encoding"
	"encoding/json"
	"fmt"
	"mime"
	"reflect"
	"strings"
	"time"
)

func isJSON(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}

// schema is a JSON Schema; an empty one allows everything.
type schema map[string]any

func schemaFor[T any]() (json.RawMessage, error) {
	s, err := schemaOf(reflect.TypeFor[T](), map[reflect.Type]bool{})
	if err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

var kinds = map[reflect.Kind]string{
	reflect.Bool: "boolean", reflect.String: "string", reflect.Float32: "number", reflect.Float64: "number",
	reflect.Int: "integer", reflect.Int8: "integer", reflect.Int16: "integer", reflect.Int32: "integer", reflect.Int64: "integer",
	reflect.Uint: "integer", reflect.Uint8: "integer", reflect.Uint16: "integer", reflect.Uint32: "integer", reflect.Uint64: "integer",
	reflect.Uintptr: "integer",
}

// schemaOf returns the schema of what encoding/json makes of t. open are the types that t is in: one that is inside
// itself has no schema there.
func schemaOf(t reflect.Type, open map[reflect.Type]bool) (schema, error) {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return schema{"type": "string", "format": "date-time"}, nil
	case t == reflect.TypeFor[json.Number]():
		return schema{"type": "number"}, nil
	case open[t] || t.Kind() != reflect.Pointer && implements[json.Marshaler](t):
		return schema{}, nil
	case t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface && implements[encoding.TextMarshaler](t):
		return schema{"type": "string"}, nil
	}
	open[t] = true
	defer delete(open, t)
	switch t.Kind() { //nolint:exhaustive // kinds has the others
	case reflect.Interface:
		return schema{}, nil
	case reflect.Pointer:
		s, err := schemaOf(t.Elem(), open)
		return orNull(s), err
	case reflect.Struct:
		return object(t, open)
	case reflect.Map:
		if k := t.Key(); kinds[k.Kind()] == "" && !implements[encoding.TextMarshaler](k) {
			return nil, fmt.Errorf("type %s cannot be written as JSON", t)
		}
		s, err := schemaOf(t.Elem(), open)
		return orNull(schema{"type": "object", "additionalProperties": s}), err
	case reflect.Slice, reflect.Array:
		return array(t, open)
	}
	if name := kinds[t.Kind()]; name != "" {
		return schema{"type": name}, nil
	}
	return nil, fmt.Errorf("type %s cannot be written as JSON", t)
}

func implements[I any](t reflect.Type) bool {
	i := reflect.TypeFor[I]()
	return t.Implements(i) || reflect.PointerTo(t).Implements(i)
}

// orNull allows null, too, which a nil pointer, map or slice becomes.
func orNull(s schema) schema {
	if name, ok := s["type"].(string); ok {
		s["type"] = []string{name, "null"}
	}
	return s
}

func array(t reflect.Type, open map[reflect.Type]bool) (schema, error) {
	e := t.Elem()
	if t.Kind() == reflect.Slice && e.Kind() == reflect.Uint8 && !implements[json.Marshaler](e) && !implements[encoding.TextMarshaler](e) {
		return orNull(schema{"type": "string", "contentEncoding": "base64"}), nil
	}
	s, err := schemaOf(e, open)
	out := schema{"type": "array", "items": s}
	if t.Kind() == reflect.Array {
		out["minItems"], out["maxItems"] = t.Len(), t.Len()
		return out, err
	}
	return orNull(out), err
}

func object(t reflect.Type, open map[reflect.Type]bool) (schema, error) {
	properties, required := schema{}, []string{}
	err := fields(t, open, func(name string, s schema, always bool) {
		if properties[name] != nil { // an outer field hides an embedded one
			return
		}
		properties[name] = s
		if always {
			required = append(required, name)
		}
	})
	out := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		out["required"] = required
	}
	return out, err
}

// fields adds the fields of a struct, then those of embedded structs.
func fields(t reflect.Type, open map[reflect.Type]bool, add func(name string, s schema, always bool)) error {
	var embedded []reflect.StructField
	for f := range t.Fields() {
		tag := f.Tag.Get("json")
		name, rest, _ := strings.Cut(tag, ",")
		flags := "," + rest + ","
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case tag == "-" || !f.IsExported() && (!f.Anonymous || inner.Kind() != reflect.Struct):
			continue
		case f.Anonymous && name == "" && inner.Kind() == reflect.Struct:
			embedded = append(embedded, f)
			continue
		case name == "":
			name = f.Name
		}
		s, err := schemaOf(f.Type, open)
		if err != nil {
			return fmt.Errorf("field %s of %s: %w", f.Name, t, err)
		}
		if strings.Contains(flags, ",string,") && kinds[inner.Kind()] != "" {
			s = schema{"type": "string"}
		}
		add(name, s, !strings.Contains(flags, ",omitempty,") && !strings.Contains(flags, ",omitzero,"))
	}
	for _, f := range embedded {
		inner, optional := f.Type, f.Type.Kind() == reflect.Pointer
		if optional {
			inner = inner.Elem()
		}
		if open[inner] {
			continue
		}
		open[inner] = true
		err := fields(inner, open, func(name string, s schema, always bool) { add(name, s, always && !optional) })
		delete(open, inner)
		if err != nil {
			return err
		}
	}
	return nil
}
