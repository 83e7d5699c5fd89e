package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/errtext"
	"github.com/waybill-go/waybill/internal/patience"
)

// A secret that Options.StoredError leaves out of an error's text does not reach the broker, for each way to refuse the
// message. Class, reason and log are those of the error itself.
func TestStoredErrorsAreWithoutSecrets(t *testing.T) {
	t.Parallel()
	const secret = "card 4111111111111111"
	for name, c := range map[string]struct {
		fail  error
		sub   waybill.Subscription
		want  []string // the errors that the acks carry
		parks waybill.Reason
	}{
		"retried, then parked": {fail: errors.New(secret), want: []string{"card ****", "card ****"}, parks: waybill.ReasonAttempts},
		"rejected":             {fail: waybill.Reject(errors.New(secret)), want: []string{"rejected: card ****"}, parks: waybill.ReasonRejected},
		"an outage of its own": {fail: waybill.Outage(errors.New(secret)), want: []string{"card ****"}, parks: waybill.ReasonDeliveries},
		"without a group": {
			sub:  waybill.Subscription{PerGroup: waybill.GroupLimit{Concurrency: 1, By: func(*waybill.Delivery) string { panic(secret) }}},
			want: []string{"card ****"}, parks: waybill.ReasonRejected,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Time(26*time.Hour, "the limit of a message's own outages is 24 h")
				b := declared(t)
				var log strings.Builder
				c.sub.Queue = queue
				stop := start(t, b, consumer.Options{
					Retry: waybill.RetryDelays(time.Second), Logger: slog.New(slog.NewTextHandler(&log, nil)),
					StoredError: func(err error) string { return strings.ReplaceAll(err.Error(), "4111111111111111", "****") },
				}, c.sub, handle(func(_ context.Context, d *waybill.Delivery) error {
					if d.Envelope.ID == "id-1" {
						return c.fail
					}
					return nil
				}))
				b.publish(t, 1)
				for range 25 { // others are handled meanwhile: an outage is the message's own
					b.send(t, messages(1, waybill.ID(fmt.Sprint("other-", time.Now().Unix())))...)
					patience.Pass(t, time.Hour)
				}
				stop()
				var got []string
				for _, a := range b.acks {
					if a.Verdict == core.VerdictRetry && !a.SameAttempt || a.Verdict == core.VerdictReject && a.Delivery.Envelope.ID == "id-1" {
						got = append(got, a.Err)
					}
				}
				if len(got) != len(c.want) {
					t.Fatalf("acks carry %q, want %q", got, c.want)
				}
				for i := range got {
					if strings.Contains(got[i], "4111") || !strings.Contains(got[i], "****") {
						t.Errorf("an ack carries %q, want %q in it", got[i], c.want[i])
					}
				}
				for _, p := range b.Parked(queue) {
					if p.Envelope.ID == "id-1" && p.Reason != c.parks {
						t.Errorf("parked with reason %s, want %s", p.Reason, c.parks)
					}
				}
				if !strings.Contains(log.String(), "4111") {
					t.Error("the log does not have the error as it is")
				}
			})
		})
	}
}

// A function that panics, or returns nothing, leaves the secret out as well.
func TestStoredErrorThatFails(t *testing.T) {
	t.Parallel()
	err := waybill.Reject(errors.New("secret"))
	for _, f := range []func(error) string{func(error) string { panic("secret") }, func(error) string { return "" }} {
		got := errtext.WithText(err, f)
		if text := got.Error(); strings.Contains(text, "secret") || !strings.Contains(text, "hidden") {
			t.Errorf("the text is %q", text)
		}
		if waybill.ClassOf(got) != waybill.ClassPermanent || !errors.Is(got, err) {
			t.Errorf("class %v: the error is not in it any more", waybill.ClassOf(got))
		}
	}
	if got := errtext.WithText(err, nil); !errors.Is(got, err) || got.Error() != err.Error() || errtext.WithText(nil, func(error) string { return "x" }) != nil {
		t.Error("without a function or an error something has changed")
	}
}
