package schema

import "strings"

// A schema of the search path can have a function with the name of one of the server's. It is called instead if its
// argument types fit better, which happens to functions for any type, and to arguments that are parameters. Then a
// neighbour who may create functions there, in public for instance, has code run with the rights of a relay. So the
// server's functions are called with their schema. Operators have no such way that could be read: where there is none
// for just these types, the operands are cast.
//
// See also CVE-2018-1058, and "Writing SECURITY DEFINER Functions Safely" in the manual of Postgres.

// qualified are the functions of the server that the statements call. Those without arguments need no schema: the
// server's come first.
var qualified = func() map[string]bool {
	names := map[string]bool{}
	for name := range strings.FieldsSeq(`
		array_to_string bit_or bool_or cardinality ceil concat_ws convert_from convert_to count
		current_setting date_part date_trunc decode floor format_type generate_series get_byte
		has_any_column_privilege has_schema_privilege has_sequence_privilege has_table_privilege json_agg
		json_array_elements json_build_object json_object_agg json_strip_nulls jsonb_build_object
		jsonb_each_text jsonb_set lead left length lower max md5 min nextval octet_length
		pg_get_constraintdef pg_get_expr pg_get_indexdef pg_get_triggerdef pg_get_userbyid pg_notify
		pg_options_to_table pg_sequence_last_value pg_snapshot_xip pg_snapshot_xmax pg_snapshot_xmin
		pg_terminate_backend pg_try_advisory_xact_lock pg_try_advisory_xact_lock_shared pg_typeof
		pg_walfile_name quote_literal regexp_replace replace set_config setval split_part sqrt starts_with
		string_agg string_to_array strpos substr sum to_regclass unnest`) {
		names[name] = true
	}
	return names
}()

// Qualified puts pg_catalog before the server's functions. An unnest of several arrays is left alone: it is a part of
// the language, and the server's in any case. It takes some nanoseconds a byte: a fleet opens an outbox at each visit.
func Qualified(text string) string {
	var b strings.Builder
	b.Grow(len(text) + len(text)/8)
	done := 0
	for at := 0; ; at++ {
		paren := strings.IndexByte(text[at:], '(')
		if paren < 0 {
			b.WriteString(text[done:])
			return b.String()
		}
		at += paren
		from := at
		for from > 0 && isWord(text[from-1]) {
			from--
		}
		f := text[from:at]
		if !qualified[f] || from > 0 && strings.IndexByte(`."':$`, text[from-1]) >= 0 || f == "unnest" && arguments(text[at+1:]) > 1 {
			continue
		}
		b.WriteString(text[done:from])
		b.WriteString("pg_catalog.")
		done = from
	}
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// arguments counts the arguments of a call, whose text begins behind its parenthesis.
func arguments(text string) int {
	n, depth := 1, 0
	for _, c := range text {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 0 {
				n++
			}
		}
		if depth < 0 {
			return n
		}
	}
	return n
}
