package suitetest

import (
	"os"
	"testing"

	"github.com/waybill-go/waybill/internal/patience"
)

// InVirtualTime is the TestMain of a suite's self-tests. They run in virtual time: how busy the machine is does not
// matter.
func InVirtualTime(m *testing.M) {
	if err := os.Setenv(patience.Variable, "1"); err != nil {
		panic(err)
	}
	m.Run()
}
