package sqltext_test

import (
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/sqltext"
)

// TestPlaces: the text of each place.
func TestPlaces(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer(sqltext.Words()...)
	for place, want := range map[string]string{
		"{pending}": "1", "{processing}": "2", "{published}": "3", "{failed}": "4", "{abandoned}": "5", "{terminal}": "(3, 5)",
		"{cancelled_or_replaced}": "('cancelled', 'replaced')", "{unblocking}": "('', 'cancelled', 'replaced', 'skipped', 'set_aside')",
		"{expired}": "'expired'", "{set_aside}": "'set_aside'",
		"{class_published}": "0", "{class_abandoned}": "1", "{class_cancelled}": "2",
		"{tell_key}": "1", "{tell_record}": "2", "{tell_from}": "3", "{tell_decide}": "4",
		"{retrying}": "1", "{blocking}": "2", "{held}": "3", "{hold_granted}": "1", "{hold_locked}": "2", "{hold_gone}": "3",
	} {
		if got := words.Replace(place); got != want {
			t.Errorf("%s is %s, want %s", place, got, want)
		}
	}
}

// TestPlacesDiffer: no place stands for two things, and each is a name in braces.
func TestPlacesDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	words := sqltext.Words()
	for i := 0; i < len(words); i += 2 {
		place := words[i]
		if seen[place] || !strings.HasPrefix(place, "{") || !strings.HasSuffix(place, "}") || strings.Trim(place[1:len(place)-1], "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("%s is there twice, or is no name in braces", place)
		}
		seen[place] = true
	}
}
