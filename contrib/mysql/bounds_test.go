package waybillmysql_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
)

// DB-28 IN-05: a purge, and a look for records to delete, begin where the latest one ended, behind what an open read
// view keeps of those that are gone.
func TestCleaningBehindAnOldReadView(t *testing.T) {
	t.Parallel()
	f := newFlat(t)
	// Young records of each class stay. A look that ends at none goes on to the first one that is there, of any
	// class.
	for _, state := range []int{1, 3, 4, 5, 6} {
		f.exec(fmt.Sprintf(`INSERT INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags)
			VALUES (-1000000 - %d, 'r', '', 0, %d, 0, %s + 3600000000, 0, 0)`, state, state, flatNow))
	}
	ago := 0
	// gone has n marks and n records of each class that were deleted after the time of those before.
	gone := func(n int) {
		t.Helper()
		ago++
		numbers := fmt.Sprintf(`(SELECT a.g + 256 * b.g AS i FROM waybill_outbox_marks a, waybill_outbox_marks b LIMIT %d) i`, n)
		at := fmt.Sprintf("%s - %d", flatNow, (3600-ago)*1_000_000)
		f.exec(`INSERT INTO waybill_inbox (consumer, source, id, handled_at, mark) SELECT 'c', '/s', UUID(), ` + at + `, 1 FROM ` + numbers)
		f.exec(`INSERT INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags)
			SELECT -i - 1, 'r', '', 0, ELT(i % 3 + 1, 3, 5, 6), 0, ` + at + `, 0, 0 FROM ` + numbers)
		f.exec(`DELETE FROM waybill_inbox`)
		f.exec(`DELETE FROM waybill_outbox_aside WHERE seq BETWEEN -1000000 AND -1`)
	}
	costs := func() map[string][]float64 {
		t.Helper()
		f.keep() // the looks follow
		f.pages = map[string][]float64{}
		f.keep()
		defer func() { f.pages = nil }()
		return f.pages
	}
	gone(100)
	before := costs()
	gone(20_000)
	f.rest(time.Second)
	after := costs()
	for _, call := range []string{"clean", "purge the inbox"} {
		// The usual call counts: once in some runs the server chooses another index for one of them.
		slices.Sort(before[call])
		slices.Sort(after[call])
		x, y := before[call][len(before[call])/2], after[call][len(after[call])/2]
		if t.Logf("%s: %.0f pages, %.0f behind what is gone", call, x, y); y > x+40 {
			t.Errorf("%s: looks at %.0f pages behind what is gone, and %.0f before", call, y, x)
		}
	}
}

// IN-05: a purge that is full goes on at its newest mark, and one that is not where the young marks begin. Marks that
// are committed late are found when it begins anew.
func TestPurgeGoesOn(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	exec := func(text string) {
		t.Helper()
		if _, err := s.Own().ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		exec(fmt.Sprintf(`INSERT INTO waybill_inbox (consumer, source, id, handled_at, mark) VALUES ('c', '/s', '%d', %s - 3600000000 + %d, 1)`, i, flatNow, i))
	}
	purge := func(want int) {
		t.Helper()
		if n, err := s.PurgeInbox(t.Context(), "c", time.Minute, 2); n != want || err != nil {
			t.Errorf("a purge deletes %d marks, %v, want %d", n, err, want)
		}
		s.GoOn()
	}
	for _, want := range []int{2, 2, 1, 0} {
		purge(want)
	}
	exec(`INSERT INTO waybill_inbox (consumer, source, id, handled_at, mark) VALUES ('c', '/s', 'late', ` + flatNow + ` - 3600000000, 1)`)
	purge(0)
	s.Anew()
	purge(1)
}
