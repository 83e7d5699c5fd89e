package cli

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean returns s as it can be shown on a terminal, on one line: a rune that is not printable, or turns the direction
// of the text, is shown as an escape.
func clean(s string) string {
	if !strings.ContainsFunc(s, unsafe) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[i])|0x100, 16)[1:])
		case unsafe(r):
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
		i += n
	}
	return b.String()
}

func unsafe(r rune) bool {
	return !unicode.IsPrint(r) || unicode.Is(unicode.Bidi_Control, r)
}

// cleanLines is clean for a text of several lines.
func cleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = clean(strings.ReplaceAll(lines[i], "\t", "  "))
	}
	return strings.Join(lines, "\n")
}
