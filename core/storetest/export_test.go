package storetest

import (
	"context"
	"strings"

	"github.com/waybill-go/waybill/core/internal/suitetest"
)

// TruthRows runs the truth tables, and returns the numbers of their rows.
func TruthRows(ctx context.Context, h Harness) (rows map[string]int, err error) {
	rows = map[string]int{}
	for _, c := range ruleChecks {
		k := newKit(ctx, h)
		err := suitetest.Guard(func() { c.fn(k) })
		k.close()
		if rows[strings.TrimPrefix(c.name, "rules-")] = k.truths; err != nil {
			return rows, err
		}
	}
	return rows, nil
}
