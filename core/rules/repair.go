package rules

import (
	"context"
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/content"
)

// RepairHeader is the name of the header of a message whose body an operator has replaced. An inbox knows by it that a
// message with a known id is not another one.
const RepairHeader = content.Header

// RepairMark returns the value of [RepairHeader] that the record of req gets with its new body; "" if it gets none,
// since it has one, or cannot have one. The value depends on the first body alone. So a store may ask for it before the
// transaction that changes the record, and gives it to a record that has none.
func RepairMark(ctx context.Context, s admin.Inspector, req *admin.RedriveRequest) (string, error) {
	if req.Body == nil || req.DryRun {
		return "", nil
	}
	inspect := s.Inspect
	if at, ok := s.(admin.SeqInspector); ok { // an index has each record that can be put back
		inspect = func(ctx context.Context, route, id string) (admin.Stored, error) {
			return at.InspectAt(ctx, route, id, 0)
		}
	}
	st, err := inspect(ctx, req.Filter.Routes[0], req.Filter.IDs[0])
	switch {
	case errors.Is(err, waybill.ErrNotFound):
		return "", nil
	case err != nil || st.Err != nil: // nothing can be said of what cannot be read
		return "", err
	}
	return content.Mark(&st.Envelope), nil
}
