package dberr

import (
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// TakenMark stands in the error of the statement that looks for ids of other sources. The route and the id follow, each
// with a byte 31 behind it.
const TakenMark = "waybill: id taken: "

// IDTaken turns the error of the statement that looks for ids of other sources into that of core.StagedRow; nil for
// other errors.
func IDTaken(op string, err error) error {
	if SQLState(err) != "22P02" { // the text is no boolean
		return nil
	}
	_, rest, found := strings.Cut(err.Error(), TakenMark)
	if names := strings.Split(rest, "\x1f"); found && len(names) > 2 {
		row := core.StagedRow{Route: names[0], Envelope: waybill.Envelope{ID: names[1]}}
		return row.IDTakenError("waybill/postgres: " + op)
	}
	return nil
}
