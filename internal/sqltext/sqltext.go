// Package sqltext puts the numbers and words of the contract into SQL, so that no statement repeats a rule of package
// core or package waybill.
//
// # Guarantees
//
// A statement names a state as {failed} and a list of reasons as {withdrawn}. [Words] has the replacements.
//
// # Concurrency
//
// Words is safe for concurrent use.
//
// # Ownership
//
// The slice belongs to the caller.
//
// # Limits
//
// Files with migrations are not rendered: they are on disks already, and never change.
package sqltext

import (
	"strconv"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Words returns pairs of a placeholder and its replacement, for strings.NewReplacer: the number of each state, such as
// {failed}; each reason as text, such as {'expired'}; the list {withdrawn}, of the reasons with which an application
// took a record back; and the list {unblocking}, of the reasons with which an abandoned record does not block its key.
func Words() []string {
	var words []string
	for s := core.StatePending; s <= core.StateAbandoned; s++ {
		words = append(words, "{"+s.String()+"}", strconv.Itoa(int(s)))
	}
	var withdrawn, unblocking []string
	for _, r := range waybill.Reasons() {
		text := "'" + string(r) + "'"
		words = append(words, "{"+text+"}", text)
		if r.Withdrawn() {
			withdrawn = append(withdrawn, text)
		}
		if !r.Blocks() {
			unblocking = append(unblocking, text)
		}
	}
	return append(words, "{withdrawn}", list(withdrawn), "{unblocking}", list(unblocking))
}

func list(texts []string) string { return "(" + strings.Join(texts, ", ") + ")" }
