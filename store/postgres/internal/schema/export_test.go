package schema

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ShapeText is the shape that this release makes.
var ShapeText = shapeText

// Embedded are the names of the embedded migrations of part, without direction.
func Embedded(part Part) []string {
	var names []string
	for _, mig := range embedded() {
		if mig.part == part {
			names = append(names, mig.name)
		}
	}
	return names
}

// Live describes the live schema as ShapeText does.
func (m *Migrations) Live(ctx context.Context, db DB) (string, error) {
	var b strings.Builder
	err := m.read(ctx, db, "test", func(tx pgx.Tx) error {
		have, err := m.shape(ctx, tx)
		for _, o := range have {
			b.WriteString(o.parent + "\t" + o.name + "\t" + o.definition + "\n")
		}
		return err
	})
	return b.String(), err
}

// Add adds a version 90 of the outbox, made by up; down undoes that.
func (m *Migrations) Add(up, down string) error {
	least, err := compatible(up)
	m.files = append(m.files, migration{
		version: 90, part: PartOutbox, name: "0090_outbox_later", up: m.names.SQL(up), down: m.names.SQL(down), compatible: least,
	})
	return err
}

// UpTo returns the migrations up to the named one.
func (m *Migrations) UpTo(name string) *Migrations {
	earlier := *m
	for i := range m.files {
		if m.files[i].name == name {
			earlier.files = m.files[:i+1]
		}
	}
	return &earlier
}

// Render puts the names of m in their places.
func (m *Migrations) Render(text string) string { return m.names.SQL(text) }
