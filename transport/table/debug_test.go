package table_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/transport/table"
)

// OP-05: at level debug the log tells which members came and went, and which partitions changed hands.
func TestDebugLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		var log sharedtest.Log
		r := subscribe(t, newTable(t, s, table.Options{Logger: log.Logger(slog.LevelDebug)}))
		none(t, r, time.Minute)
		text := log.Take()
		for _, part := range []string{`event=table.members`, "queue=mails met=[", "event=table.partitions", "queue=mails taken=", "gone=[]"} {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in\n%s", part, text)
			}
		}
		other := subscribe(t, newTable(t, s, table.Options{}))
		none(t, other, time.Minute)
		if err := other.Close(t.Context()); err != nil {
			t.Error(err)
		}
		none(t, r, time.Minute)
		text = log.String()
		for _, part := range []string{"queue=mails met=[] gone=["} {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in\n%s", part, text)
			}
		}
	})
}
