package sqlite

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// small are tables that are read as a whole: they have a row for each member, partition or kind of number.
var small = []string{"other_outbox_members", "other_outbox_partitions", "u", "sqlite_sequence", "n", "m"}

// allTexts are all statements that are repeated.
func allTexts() []string {
	return append(hot(),
		suspectText, keptText, hintText, ownerText, savePartitionText, keepHintText, endHoldsText, endText,
		dropPartitionsText, releasePartitionText, inLineText, drawText, noticeDoneText, restText, byIDText, byKeyText, stagedText, deleteText, abandonText, dropDedupeKeyText, holderText,
		partitionText, tellText, highWaterText, inspectText, storedText, walkText, walkGoneText, routesText, requeueText, outlivedText, headsText, tellOwnerText, untoldText, undecideText, nextKeyText, nextDueKeyText, behindText, trialsText, electText,
		expiredText, purgeText, countReadyText, countTimersText, countRetriesText, countAbandonedText, spanText, countHeldText, hitsText+parts[0].where+endHitsText, hitsText+parts[1].where+endHitsText, hitsText+parts[2].where+endHitsText, hitsText+parts[3].where+endHitsText, newsText, freshText, peekText, insertText+insertRow+insertEnd)
}

// ST-08 ST-09 ST-10 DB-20: every statement that is repeated is served by indexes.
func TestPlans(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Prefix: "other_"})
	for _, text := range allTexts() {
		args := []any{}
		for i := range 20 {
			if strings.Contains(text, fmt.Sprintf("?%d", i+1)) || strings.Contains(text, "?,") && i < 13 {
				args = slices.Grow(args, i+1)[:i+1]
				args[i] = "[]"
			}
		}
		rows, err := s.DB().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+s.sql(text), args...)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for rows.Next() {
			var a, b, c int
			var detail string
			if err := rows.Scan(&a, &b, &c, &detail); err != nil {
				t.Fatal(err)
			}
			words := strings.Fields(detail)
			full := words[0] == "SCAN" && !strings.Contains(detail, "CONSTANT ROW") &&
				!strings.Contains(detail, "VIRTUAL TABLE") && !strings.HasPrefix(words[1], "(")
			if testing.Verbose() {
				t.Log(detail)
			}
			if full && !slices.Contains(small, words[1]) && !limited(text) || strings.Contains(detail, "AUTOMATIC") {
				t.Errorf("%s: %s", text, detail)
			}
			if strings.Contains(detail, "TEMP B-TREE FOR ORDER BY") {
				t.Errorf("sorts: %s: %s", text, detail)
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // in a loop, and read to the end
			t.Fatal(err)
		}
	}
}

// limited reports a statement that goes over a table by its primary key, or over a bounded list.
func limited(text string) bool {
	return text == highWaterText || text == anyNoticeText || text == nextKeyText || text == nextDueKeyText || text == countHeldText
}
