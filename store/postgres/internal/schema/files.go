package schema

import (
	"fmt"
	"io/fs"
	"strings"
)

// SQL returns all up migrations as one script, for people who apply changes themselves.
func (m *Migrations) SQL() string {
	var b strings.Builder
	for i := range m.files {
		fmt.Fprintf(&b, "-- %s\n%s%s\n", m.files[i].name, m.files[i].up, m.record(&m.files[i]))
	}
	return b.String()
}

// FS returns the migrations as files NNNN_part_name.up.sql and .down.sql with the names filled in, as golang-migrate
// reads them. For goose, which wants both directions in one file, use [Migrations.GooseFS]. Those tools keep the
// versions; the files keep waybill_meta in step, so that Check works.
func (m *Migrations) FS() fs.FS {
	files := textFS{}
	for i := range m.files {
		mig := &m.files[i]
		files[mig.name+".up.sql"] = mig.up + m.record(mig)
		files[mig.name+".down.sql"] = mig.down + m.forget(i)
	}
	return files
}

// GooseFS returns the migrations as files NNNN_part_name.sql with goose's annotations.
func (m *Migrations) GooseFS() fs.FS {
	files := textFS{}
	for i := range m.files {
		mig := &m.files[i]
		files[mig.name+".sql"] = "-- +goose Up\n" + mig.up + m.record(mig) + "\n-- +goose Down\n" + mig.down + m.forget(i)
	}
	return files
}
