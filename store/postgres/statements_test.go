package postgres

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMigrationsAgree: the migrations, which are never edited, say the same as the places.
func TestMigrationsAgree(t *testing.T) {
	t.Parallel()
	m, err := NewMigrations(MigrationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, n := m.SQL(), newNames("", "", "")
	for _, want := range []string{
		"state          smallint         NOT NULL DEFAULT {pending},",
		"CASE WHEN reason = '' THEN {class_published} WHEN reason IN {cancelled_or_replaced} THEN {class_cancelled} ELSE {class_abandoned} END",
		".state IS '{pending} pending, {published} published, {failed} failed, {abandoned} abandoned'",
		"'{tell_key} a key may be free, {tell_record} a record is ready again, {tell_from} records from a sequence on are ready again, " +
			"{tell_decide} an operator ends a record'",
		".seq IS 'the record; of kind {tell_from} the first one'",
		"ends it, of kind {tell_decide}'",
	} {
		if want := n.SQL(want); !strings.Contains(text, want) {
			t.Errorf("the migrations do not say %q", want)
		}
	}
}

// TestNoPlaceIsLeft: no text keeps a place.
func TestNoPlaceIsLeft(t *testing.T) {
	t.Parallel()
	o, err := NewSQLStager(Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	left := regexp.MustCompile(`\{[a-z_]+\}`)
	for _, text := range append(texts(newStatements(newNames("", "", ""))), texts(o.(*sqlStager).sql)...) {
		if place := left.FindString(text); place != "" {
			t.Errorf("%s is left in %s", place, text)
		}
	}
}

// texts returns all strings in a struct of statements.
func texts(statements any) []string {
	return slices.Collect(maps.Values(named("", statements)))
}

// named returns all strings in a struct of statements by the names of their fields.
func named(name string, statements any) map[string]string {
	all := map[string]string{}
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		switch v.Kind() { //nolint:exhaustive // what such structs hold
		case reflect.Pointer:
			walk(path, v.Elem())
		case reflect.String:
			all[path] = v.String()
		case reflect.Struct:
			for field, value := range v.Fields() {
				walk(path+"."+field.Name, value)
			}
		case reflect.Array:
			for i := range v.Len() {
				walk(fmt.Sprintf("%s.%d", path, i), v.Index(i))
			}
		case reflect.Map:
			for each := v.MapRange(); each.Next(); {
				walk(fmt.Sprintf("%s.%+v", path, each.Key()), each.Value())
			}
		}
	}
	walk(name, reflect.ValueOf(statements))
	return all
}
