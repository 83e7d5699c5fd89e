package storetest

// A difference of two times saturates in Go at 292 years, and a number of microseconds overflows as a duration at the
// same bound. The usual "never" of other languages is the year 9999, so that stores meet both.

import (
	"time"

	"github.com/waybill-go/waybill"
)

var yearChecks = []named{
	{"expires-in-centuries", expiresInYear9999},
}

// never is the usual expiry of systems that know no other "never".
var never = time.Date(9999, time.December, 31, 23, 59, 59, 999_999_000, time.UTC)

// A message that expires in centuries is handed out with a life of centuries, at first and as a retry. ST-11.
func expiresInYear9999(k *kit) {
	const century = 100 * 365 * 24 * time.Hour
	for _, at := range []time.Time{time.Date(2400, time.January, 1, 0, 0, 0, 0, time.UTC), never} {
		m := k.msg(waybill.OccurredAt(at))
		m.Expires = at
		ids := k.stage(m)
		for attempt := range 2 {
			r := k.takeIDs(ids)[0]
			k.failIf(!r.Expires || r.ExpiresIn < century, "a message that expires at %s has %s left at attempt %d, expires: %v", at, r.ExpiresIn, attempt+1, r.Expires)
			e := &r.Envelope
			k.failIf(!e.Expires.Equal(at) || !e.Time.Equal(at),
				"a message of %s that expires then is handed out as one of %s that expires at %s", at, e.Time, e.Expires)
			if attempt == 0 {
				k.retry(r, 0)
			} else {
				k.published(r)
			}
		}
	}
	k.none("all were published")
}
