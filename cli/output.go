package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf16"
)

// say writes for people. A terminal that is gone is no error.
func say(w io.Writer, format string, a ...any) { _, _ = fmt.Fprintf(w, format, a...) }

// writeJSON writes one JSON value and a new line. What could move the cursor of a terminal is escaped, although JSON
// allows it as it is.
func (c *command) writeJSON(v any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range text.String() {
		if r == '\n' || !unsafe(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, "\\u%04x", unit)
		}
	}
	_, err := io.WriteString(c.io.Out, out.String())
	return err
}

// table shows rows under a head, the columns aligned.
func (c *command) table(head []string, rows [][]string) error {
	w := tabwriter.NewWriter(c.io.Out, 2, 8, 2, ' ', 0)
	say(w, "%s\n", strings.Join(head, "\t"))
	for _, row := range rows {
		cells := make([]string, len(row))
		for i := range row {
			cells[i] = clean(row[i])
		}
		say(w, "%s\n", strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// ago shows a duration for people: two units at most.
func ago(d time.Duration) string {
	switch {
	case d < 0:
		return "in " + ago(-d)
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}
