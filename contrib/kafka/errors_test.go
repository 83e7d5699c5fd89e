package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/kafka"
)

func TestErrorClasses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		class waybill.Class
		is    error
	}{
		{kerr.MessageTooLarge, waybill.ClassPermanent, nil},
		{kerr.RecordListTooLarge, waybill.ClassPermanent, nil},
		{kerr.InvalidRecord, waybill.ClassRejected, nil},
		{kerr.PolicyViolation, waybill.ClassRejected, nil},
		{kerr.NotEnoughReplicas, waybill.ClassOutage, nil},
		{kerr.UnknownTopicOrPartition, waybill.ClassOutage, nil},
		{kerr.TopicAuthorizationFailed, waybill.ClassOutage, waybill.ErrMisconfigured},
		{kerr.GroupAuthorizationFailed, waybill.ClassOutage, waybill.ErrMisconfigured},
		{kerr.SaslAuthenticationFailed, waybill.ClassOutage, waybill.ErrMisconfigured},
		{kerr.InvalidSessionTimeout, waybill.ClassOutage, waybill.ErrMisconfigured},
		{kgo.ErrClientClosed, waybill.ClassOutage, waybill.ErrClosed},
		{context.DeadlineExceeded, waybill.ClassOutage, context.DeadlineExceeded},
		{errors.New("connection refused"), waybill.ClassOutage, nil},
	} {
		got := kafka.Classify(fmt.Errorf("wrapped: %w", c.err))
		if waybill.ClassOf(got) != c.class || !errors.Is(got, c.err) || c.is != nil && !errors.Is(got, c.is) {
			t.Errorf("%v: class %s, %v", c.err, waybill.ClassOf(got), got)
		}
		if c.is == nil && errors.Is(got, waybill.ErrMisconfigured) {
			t.Errorf("%v is taken for a misconfiguration", c.err)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for field, opts := range map[string]kafka.Options{
		"Bus":            {Bus: "a_b"},
		"Bus: has":       {Bus: strings.Repeat("x", 82)},
		"Partitions":     {Partitions: -1},
		"MinInSync":      {Replicas: 1, MinInSync: 2},
		"SessionTimeout": {SessionTimeout: -time.Second},
		"Options.Client": {Client: []kgo.Opt{kgo.MaxVersions(nil), kgo.SessionTimeout(-1)}},
		"kgo.DisableId":  {Client: []kgo.Opt{kgo.DisableIdempotentWrite()}},
	} {
		_, err := kafka.Dial(t.Context(), "127.0.0.1:1", opts)
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := kafka.Dial(t.Context(), " , ", kafka.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("no address: %v", err)
	}
}

// A wrong password and an absent broker are outages. The fake broker answers to the first one by closing the
// connection; a real one names the cause, see TestErrorClasses.
func TestDialErrors(t *testing.T) {
	t.Parallel()
	f := startFake(t, kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "app", "right"))
	as := func(password string) kafka.Options {
		opts := options()
		opts.Client = []kgo.Opt{kgo.SASL(scram.Auth{User: "app", Pass: password}.AsSha256Mechanism())}
		opts.Timeout = 3 * time.Second
		return opts
	}
	dial(t, f.address(), as("right"))
	_, err := kafka.Dial(t.Context(), f.address(), as("wrong-secret"))
	if waybill.ClassOf(err) != waybill.ClassOutage || strings.Contains(fmt.Sprint(err), "secret") {
		t.Errorf("a wrong password: %v", err)
	}
	opts := options()
	opts.Timeout = time.Second
	_, err = kafka.Dial(t.Context(), "127.0.0.1:1", opts)
	if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(fmt.Sprint(err), "refused") {
		t.Errorf("nobody is there: %v", err)
	}
}
