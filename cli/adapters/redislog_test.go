package adapters

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/cli/config"
)

// What the client of Redis writes by itself is a line of the log, in its format, and tells no password.
func TestRedisLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var lines redisLog
	log := slog.New(slog.NewJSONHandler(&out, nil))
	lines.of(log, config.NewSecret("redis://shop:hunt%40er2@127.0.0.1:1/0"))
	lines.of(log, config.NewSecret("redis://:other-pw@127.0.0.1:1/0"))
	lines.of(nil, config.NewSecret("redis://:third@127.0.0.1:1/0")) // nobody wants lines
	lines.Printf(t.Context(), "auth of %s failed: %v\n", "hunt@er2", "redis://shop:hunt%40er2@127.0.0.1:1/0 other-pw")
	text := out.String()
	if strings.Contains(text, "hunt") || strings.Contains(text, "other-pw") || !strings.Contains(text, `"event":"redis.client"`) ||
		!strings.Contains(text, "auth of *** failed: redis://shop:***@127.0.0.1:1/0 ***") || strings.Count(text, "\n") != 1 {
		t.Error(text)
	}
}
