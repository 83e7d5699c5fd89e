package inboxtest_test

import (
	"os"
	"testing"

	"github.com/waybill-go/waybill/internal/patience"
)

// The self-tests run in virtual time: how busy the machine is does not matter.
func TestMain(m *testing.M) {
	if err := os.Setenv(patience.Variable, "1"); err != nil {
		panic(err)
	}
	m.Run()
}
