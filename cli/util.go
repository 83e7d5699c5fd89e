package cli

import (
	"errors"
	"maps"
	"slices"

	"github.com/waybill-go/waybill"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func asInvalid(err error) (*waybill.InvalidError, bool) {
	return errors.AsType[*waybill.InvalidError](err)
}
