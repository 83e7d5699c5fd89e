package suitetest

import "testing"

func TestMain(m *testing.M) { InVirtualTime(m) }
