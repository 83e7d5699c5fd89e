// Package importer says how the rows of another system's table are moved into an outbox of the same database.
//
// # Guarantees
//
// A batch is one statement: it deletes old rows and inserts the new ones, or changes nothing. Rows move in the old
// order.
//
// # Concurrency
//
// Importers are safe for concurrent use. The old system's relay should stand still: docs/migrating.md says where it may
// run.
//
// # Ownership
//
// Requests and results are values of the caller.
//
// # Limits
//
// Stores of Postgres alone implement it.
package importer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// Request asks to move rows of another system's table into the outbox of the same database. Names and expressions
// of it are SQL of the operator, and run with the rights of the store's role.
type Request struct {
	// From is the system, one of those that ImportSystems lists.
	From string
	// Table is the old table, as "table" or "schema.table"; default that of the system.
	Table string
	// Source is the CloudEvents source of the messages, such as "/orders". Required. It must be the source by which
	// consumers know messages that the old system has sent already.
	Source string
	// Where is the condition of the rows that move, instead of the system's own.
	Where string
	// Columns replaces the expressions of columns of the outbox, or adds some. The old row is called old.
	Columns map[string]string
	// Limit is how many rows one call moves at most; default 1,000.
	Limit int
	// DryRun moves one batch and rolls it back: a row that the outbox refuses is found without a change.
	DryRun bool
}

// Result is the result of one call of Import.
type Result struct {
	// Moved is how many rows were moved, or with DryRun would be.
	Moved int64
	// Left is how many rows there are to move, with DryRun.
	Left int64
}

// System is a system whose table Import knows.
type System struct {
	// Name is the value of Request.From, and Title names the system to people.
	Name, Title string
	// Table is the system's own name of the table.
	Table string
}

// DefaultLimit and MaxLimit bound Request.Limit.
const (
	DefaultLimit = 1000
	MaxLimit     = 100_000
)

// Importer moves the rows of another system's table into the outbox.
type Importer interface {
	// ImportSystems lists the systems.
	ImportSystems() []System
	// ImportSQL returns the statement that Import runs. It has the columns that some versions of the old table do
	// not have.
	ImportSQL(req Request) (string, error)
	// Import moves one batch: a single statement deletes the old rows and inserts the new ones, in the old order.
	// An end in the middle changes nothing. Call again until Moved is 0.
	Import(ctx context.Context, req Request) (Result, error)
}

// Check returns req with its defaults filled in, and the system, or an [*waybill.InvalidError] that lists every
// problem. Every store's Import begins with it.
func Check(req Request, systems []System) (Request, error) {
	var p []string
	i := slices.IndexFunc(systems, func(s System) bool { return s.Name == req.From })
	if i < 0 {
		names := make([]string, 0, len(systems))
		for _, s := range systems {
			names = append(names, s.Name)
		}
		p = append(p, fmt.Sprintf("From: there is no system %q: choose of %s", check.Clip(req.From, 80), strings.Join(names, ", ")))
	} else {
		req.Table = cmp.Or(req.Table, systems[i].Table)
	}
	if parts := strings.Split(req.Table, "."); i >= 0 && (len(parts) > 2 || slices.Contains(parts, "")) {
		p = append(p, fmt.Sprintf("Table: %q is no name: write table or schema.table", check.Clip(req.Table, 80)))
	}
	switch s := check.Name(req.Source); {
	case req.Source == "":
		p = append(p, "Source: is empty; name the source of the messages, such as \"/orders\"")
	case s != "":
		p = append(p, "Source: "+s)
	}
	for name, expression := range req.Columns {
		if strings.TrimSpace(expression) == "" || name == "" {
			p = append(p, fmt.Sprintf("Columns[%q]: is empty; write an expression of SQL, such as old.key", check.Clip(name, 80)))
		}
	}
	req.Limit = cmp.Or(req.Limit, DefaultLimit)
	if req.Limit < 0 || req.Limit > MaxLimit {
		p = append(p, fmt.Sprintf("Limit: %d is not between 1 and %d", req.Limit, MaxLimit))
	}
	return req, waybill.Invalid("waybill: import", p...)
}
