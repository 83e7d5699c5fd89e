package cli

import "github.com/waybill-go/waybill/admin"

// differenceJSON is a difference as programs get it.
type differenceJSON struct {
	Object string `json:"object"`
	Want   string `json:"want"`
	Have   string `json:"have"`
}

func differences(found []admin.Difference) []differenceJSON {
	out := make([]differenceJSON, 0, len(found))
	for _, d := range found {
		out = append(out, differenceJSON(d))
	}
	return out
}

func (c *command) differenceTable(found []differenceJSON) error {
	rows := make([][]string, 0, len(found))
	for _, d := range found {
		rows = append(rows, []string{d.Object, d.Want, d.Have})
	}
	return c.table([]string{"OBJECT", "WANT", "HAVE"}, rows)
}
