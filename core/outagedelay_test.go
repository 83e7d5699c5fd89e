package core_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// CO-05: a message that meets an outage comes again after a minute at most, under every retry policy.
func TestOutageDelay(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	for _, c := range []struct {
		sub  waybill.Subscription
		want []time.Duration
	}{
		{waybill.Subscription{}, nil},
		{waybill.Subscription{Retry: waybill.RetryDelays()}, []time.Duration{minute}},
		{waybill.Subscription{Retry: waybill.RetryDelays(), InOrder: true}, nil},
		{waybill.Subscription{Retry: waybill.RetryDelays(time.Hour, time.Second)}, []time.Duration{time.Second, time.Hour}},
		{waybill.Subscription{Retry: waybill.RetryDelays(minute)}, []time.Duration{minute}},
		{waybill.Subscription{Retry: waybill.RetryDelays(2 * minute)}, []time.Duration{minute, 2 * minute}},
		{waybill.Subscription{Retry: waybill.RetryDelays(2 * minute), InOrder: true}, []time.Duration{2 * minute}},
	} {
		if diff := cmp.Diff(c.want, core.SubscriptionOf(&c.sub).RetryDelays); diff != "" {
			t.Errorf("%+v: %s", c.sub, diff)
		}
	}
}
