package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/limitertest"
)

// TE-01: two processes with one file.
func TestLimiterConformance(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	a, b := openAt(t, path, Options{}), openAt(t, path, Options{})
	limitertest.Run(t, func(*testing.T) (core.Limiter, core.Limiter) { return a, b })
}
