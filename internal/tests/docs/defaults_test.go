package docs_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/relay"
)

// TestDefaultsThatDiffer compares the column Waybill of the defaults in docs/migrating.md with the constants.
func TestDefaultsThatDiffer(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "/docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "## Defaults that differ")
	if !found {
		t.Fatal("docs/migrating.md has no section of defaults that differ")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	got := map[string]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 9 {
			got[strings.TrimSpace(cells[1])] = strings.TrimSpace(cells[6])
		}
	}
	retry := consumer.DefaultRetry()
	var delays []string
	for _, d := range retry.Delays {
		delays = append(delays, fmt.Sprintf("%.0f", d.Seconds()))
	}
	for row, want := range map[string]string{
		"attempts to publish":           fmt.Sprintf("%d, in about an hour", waybill.DefaultBackoffAttempts),
		"attempts to handle":            fmt.Sprintf("%d, after %s s", len(delays)+1, strings.Join(delays, ", ")),
		"deliveries without an outcome": fmt.Sprintf("%d, then parked", consumer.DefaultMaxDeliveries),
		"handlers at a time":            strconv.Itoa(consumer.DefaultConcurrency),
		"messages of one read":          strconv.Itoa(relay.DefaultBatchSize),
		"a dead relay's messages":       fmt.Sprintf("after %.0f s", relay.DefaultLease.Seconds()),
	} {
		if got[row] != want {
			t.Errorf("the row %q says %q of Waybill; the code says %q", row, got[row], want)
		}
	}
}
