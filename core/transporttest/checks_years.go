package transporttest

// A difference of two times saturates in Go at 292 years, and a number of microseconds overflows as a duration at the
// same bound. The usual "never" of other languages is the year 9999.

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

var yearChecks = []named{
	{"expires-in-centuries", ofEither, expiresInYear9999},
}

// never is the usual expiry of systems that know no other "never".
var never = time.Date(9999, time.December, 31, 23, 59, 59, 999_999_000, time.UTC)

// A message that expires in centuries is sent, retried, given back and parked with its expiry.
func expiresInYear9999(k *kit) {
	r, name := k.queue("a")
	for i, at := range []time.Time{time.Date(2400, time.January, 1, 0, 0, 0, 0, time.UTC), never} {
		want := message(name+".a", i)
		want.Expires, want.Time, want.HLC = at, at, hlc.Timestamp(1_700_000_000_123<<16|uint64(i))
		k.publish(want)
		d := k.receive(r, 1)[0]
		k.same(want, d.Envelope, fmt.Sprintf("a message of %d that expires then", at.Year()))
		if k.sub.DelaysRetries {
			k.settle(r, core.AckRetry(d, tier1, errors.New("not now")))
			d = k.receive(r, 1)[0]
			k.same(want, d.Envelope, fmt.Sprintf("the retry of a message that expires in %d", at.Year()))
		}
		for n := range 3 { // a broker may make a copy of a message that comes back often
			k.settle(r, core.AckRelease(d))
			d = k.receive(r, 1)[0]
			k.same(want, d.Envelope, fmt.Sprintf("release %d of a message that expires in %d", n+1, at.Year()))
		}
		if i > 0 && k.h.Parked != nil && k.sub.Parks {
			k.settle(r, core.AckReject(d, waybill.ReasonRejected, errors.New("no")))
			k.parked(name, want, waybill.ReasonRejected, "no")
			continue
		}
		k.settle(r, core.AckDone(d))
	}
	k.nothing(r, "all messages were done or parked")
}
