package adapters

import (
	"fmt"

	"github.com/waybill-go/waybill"
)

func invalid(format string, a ...any) error {
	return waybill.Invalid("waybill: settings", fmt.Sprintf(format, a...))
}
