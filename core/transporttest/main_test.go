package transporttest_test

import (
	"testing"

	"github.com/waybill-go/waybill/core/internal/suitetest"
)

func TestMain(m *testing.M) { suitetest.InVirtualTime(m) }
