package waybillmysql

import (
	"bytes"
	"database/sql"
	"fmt"
	"strconv"
)

// numColumns is how many columns the statements have that begin with columns.
const numColumns = 24

// fields reads the columns of a row, one after the other. Scan alone would allocate a string for each number. fields
// does not, and it keeps a text that is the same as in the row before.
type fields struct {
	raw  [numColumns]sql.RawBytes
	dest [numColumns]any
	last [numColumns]string // the texts of the row before
	at   int
	err  error // the first
}

func newFields() *fields {
	f := &fields{}
	for i := range f.raw {
		f.dest[i] = &f.raw[i]
	}
	return f
}

// next goes to the columns of the current row.
func (f *fields) next(rows *sql.Rows) error {
	f.at = 0
	return rows.Scan(f.dest[:]...)
}

func (f *fields) number() int64 {
	n, err := strconv.ParseInt(string(f.raw[f.at]), 10, 64)
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("column %d: %w", f.at+1, err)
	}
	f.at++
	return n
}

func (f *fields) text() string {
	if last := &f.last[f.at]; string(f.raw[f.at]) != *last {
		*last = string(f.raw[f.at])
	}
	f.at++
	return f.last[f.at-1]
}

func (f *fields) bytes() []byte {
	f.at++
	return bytes.Clone(f.raw[f.at-1])
}
