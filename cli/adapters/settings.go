package adapters

import (
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
)

func invalid(format string, a ...any) error {
	return waybill.Invalid("waybill: settings", fmt.Sprintf(format, a...))
}

// secret returns the text of a setting that must be there.
func secret(s cli.Secret, field, example string) (string, error) {
	if s.IsZero() {
		return "", invalid("%s: is missing; it must look like %s", field, example)
	}
	text, err := s.Value()
	if err != nil {
		return "", invalid("%s: %s", field, err)
	}
	return text, nil
}
