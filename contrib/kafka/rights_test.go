package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
)

// strict is a broker with users. A user without a rule has no right.
type strict struct {
	server *testenv.KafkaServer
	admin  *tools
}

func startStrict(t *testing.T, users ...string) *strict {
	t.Helper()
	s := testenv.OwnKafka(t, testenv.KafkaOptions{Passwords: passwords(users)})
	x := &strict{s, ask(t, s.Addr())}
	if err := ready(t.Context(), x.admin, 1); err != nil {
		t.Fatal(err)
	}
	return x
}

func passwords(users []string) map[string]string {
	m := map[string]string{}
	for _, user := range users {
		m[user] = user + "-secret"
	}
	return m
}

// as returns options of the client for a user.
func as(user string) []kgo.Opt {
	return []kgo.Opt{kgo.SASL(scram.Auth{User: user, Pass: user + "-secret"}.AsSha256Mechanism())}
}

// rule returns the rule of an operation of a right.
func rule(r kafka.Right, operation string) (*kadm.ACLBuilder, error) {
	op, err := kmsg.ParseACLOperation(operation)
	rule := kadm.NewACLs().ResourcePatternType(kadm.ACLPatternLiteral).Operations(op).Allow("User:" + r.User).AllowHosts()
	if r.Resource == "Group" {
		return rule.Groups(r.Name), err
	}
	return rule.Topics(r.Name), err
}

// grant gives rights, and waits until they are in force.
func (s *strict) grant(ctx context.Context, rights []kafka.Right) error {
	for _, r := range rights {
		for _, name := range r.Operations {
			rule, err := rule(r, name)
			if err != nil {
				return err
			}
			res, err := s.admin.CreateACLs(ctx, rule)
			for _, r := range res {
				err = errors.Join(err, r.Err)
			}
			for err == nil {
				var found kadm.DescribeACLsResults
				if found, err = s.admin.DescribeACLs(ctx, rule); err == nil && len(found) == 1 && len(found[0].Described) == 1 {
					break
				}
			}
			if err != nil {
				return fmt.Errorf("%v: %w", r, err)
			}
		}
	}
	return nil
}

// revoke takes rights away.
func (s *strict) revoke(ctx context.Context, rights []kafka.Right) error {
	for _, r := range rights {
		for _, name := range r.Operations {
			rule, err := rule(r, name)
			if err != nil {
				return err
			}
			if res, err := s.admin.DeleteACLs(ctx, rule); err != nil || len(res) != 1 || len(res[0].Deleted) != 1 {
				return fmt.Errorf("%v, %s: %v was deleted: %w", r, name, res, err)
			}
		}
	}
	return nil
}

var (
	billing = core.Subscription{Queue: "billing", Bindings: []string{"payments.*"}, MaxDeliveries: 20}
	mail    = core.Subscription{Queue: "mail", Bindings: []string{"mails.*"}, MaxDeliveries: 20}
)

// work is a relay that publishes, a consumer of billing that settles in every way, and an operator who replays, each as
// a user of its own.
func (s *strict) work(ctx context.Context, opts kafka.Options) error {
	dial := func(user string) (*kafka.Transport, error) {
		opts := opts
		opts.Passive, opts.Client = true, as(user)
		bus, err := kafka.Dial(ctx, s.server.SASLAddr(), opts)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", user, err)
		}
		context.AfterFunc(ctx, func() { _ = bus.Close(context.WithoutCancel(ctx)) })
		return bus, nil
	}
	relay, err := dial("relay")
	if err != nil {
		return err
	}
	var batch []waybill.Envelope
	for _, id := range []string{"1", "2", "3", "4"} {
		batch = append(batch, waybill.Envelope{ID: id, Source: "/x", Topic: "payments.made", Type: "x", Body: []byte("true")})
	}
	if err := errors.Join(relay.Publish(ctx, batch).FirstErr(), relay.Check(ctx)); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	bus, err := dial("billing")
	if err != nil {
		return err
	}
	r, err := bus.Subscribe(ctx, billing)
	if err != nil {
		return err
	}
	take := func(ids ...string) (ds []*waybill.Delivery, err error) {
		for len(ds) < len(ids) {
			some, err := r.Receive(ctx, 10)
			if err != nil {
				return nil, fmt.Errorf("billing waits for %v: %w", ids, err)
			}
			ds = append(ds, some...)
		}
		slices.SortFunc(ds, func(a, b *waybill.Delivery) int { return strings.Compare(a.Envelope.ID, b.Envelope.ID) })
		for i, d := range ds {
			if d.Envelope.ID != ids[i] {
				return nil, fmt.Errorf("%s came, want %v", d.Envelope.ID, ids)
			}
		}
		return ds, nil
	}
	settle := func(acks ...core.Ack) error { return r.Settle(ctx, acks).FirstErr() }
	ds, err := take("1", "2", "3", "4")
	if err != nil {
		return err
	}
	again := errors.New("again")
	if err := settle(core.AckDone(ds[0]), core.AckRetry(ds[1], time.Millisecond, again), core.AckRelease(ds[2]), core.AckReject(ds[3], waybill.ReasonRejected, again)); err != nil {
		return err
	}
	if ds, err = take("2", "3"); err != nil {
		return err
	}
	if err := settle(core.AckDone(ds[0]), core.AckDone(ds[1])); err != nil {
		return err
	}
	operator, err := dial("operator")
	if err != nil {
		return err
	}
	if n, err := operator.ReplayParked(ctx, admin.ParkedRequest{Queue: "billing", All: true}); err != nil || n != 1 {
		return fmt.Errorf("replayed %d: %w", n, err)
	}
	if ds, err = take("4"); err != nil {
		return err
	}
	return settle(core.AckDone(ds[0]))
}

// rightsOf returns the rights of the tests' users on a bus.
func rightsOf(t *testing.T, opts kafka.Options) (rights []kafka.Right) {
	t.Helper()
	for _, x := range []struct {
		users kafka.Users
		sub   core.Subscription
	}{
		{kafka.Users{Relay: "relay", Consumer: "billing", Operator: "operator"}, billing},
		{kafka.Users{Consumer: "mail"}, mail},
	} {
		all, err := kafka.NewTopology(opts, x.users, x.sub)
		if err != nil {
			t.Fatal(err)
		}
		rights = append(rights, all.Rights...)
	}
	return rights
}

// SE-03: with the exported rights a relay publishes, a passive consumer settles in every way, and an operator replays.
// The consumer of another queue can write to none of its topics, nor read its retries and parked messages, nor settle
// for it, bind, or delete. A bus of another service no user reads, writes or settles for.
func TestServicesKeepApart(t *testing.T) {
	t.Parallel()
	s := startStrict(t, "relay", "billing", "mail", "operator")
	opts := options()
	if err := dial(t, s.server.Addr(), opts).Declare(t.Context(), billing, mail); err != nil {
		t.Fatal(err)
	}
	if err := s.grant(t.Context(), rightsOf(t, opts)); err != nil {
		t.Fatal(err)
	}
	if err := s.work(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	c, err := kgo.NewClient(append(as("mail"), kgo.SeedBrokers(s.server.SASLAddr()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	bus, retry, parked, bindings, group := opts.Bus, opts.Bus+".retry.billing", opts.Bus+".parked.billing", opts.Bus+".bindings", opts.Bus+".billing"
	tries := map[string]error{}
	for _, topic := range []string{bus, retry, parked, bindings} {
		tries["write to "+topic] = c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte("forged")}).FirstErr()
	}
	for _, topic := range []string{retry, parked} {
		c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}})
		for tries["read "+topic] = nil; ; {
			if fetches := c.PollFetches(t.Context()); len(fetches.Errors()) > 0 {
				tries["read "+topic] = fetches.Errors()[0].Err
				break
			} else if fetches.NumRecords() > 0 {
				break
			}
		}
		c.RemoveConsumePartitions(map[string][]int32{topic: {0}})
	}
	k := kadm.NewClient(c)
	var to kadm.Offsets
	to.AddOffset(bus, 0, 1000, -1)
	settled, err := k.CommitOffsets(t.Context(), group, to)
	tries["settle for another queue"] = errors.Join(err, settled.Error())
	_, tries["delete another's group"] = k.DeleteGroup(t.Context(), group)
	for _, topic := range []string{bus, retry, parked, bindings} {
		_, tries["delete "+topic] = k.DeleteTopic(t.Context(), topic)
		changed, err := k.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: new("1")}}, topic)
		_, refused := changed.On(topic, func(r *kadm.AlterConfigsResponse) error { return r.Err })
		tries["change "+topic] = errors.Join(err, refused)
	}
	deleted, err := k.DeleteRecords(t.Context(), to)
	tries["delete messages"] = errors.Join(err, deleted.Error())
	_, tries["make a topic"] = k.CreateTopic(t.Context(), 1, 1, nil, bus+".retry.mine")
	// No user of this bus does anything with another bus.
	other := options()
	if err := dial(t, s.server.Addr(), other).Declare(t.Context(), billing); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"relay", "billing", "mail", "operator"} {
		c, err := kgo.NewClient(append(as(user), kgo.SeedBrokers(s.server.SASLAddr()))...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, topic := range []string{other.Bus, other.Bus + ".retry.billing", other.Bus + ".parked.billing", other.Bus + ".bindings"} {
			tries[user+" writes to "+topic] = c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("forged")}).FirstErr()
			c.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}})
			if fetches := c.PollFetches(t.Context()); len(fetches.Errors()) > 0 {
				tries[user+" reads "+topic] = fetches.Errors()[0].Err
			} else {
				tries[user+" reads "+topic] = nil
			}
			c.RemoveConsumePartitions(map[string][]int32{topic: {0}})
		}
		var to kadm.Offsets
		to.AddOffset(other.Bus, 0, 1000, -1)
		settled, err := kadm.NewClient(c).CommitOffsets(t.Context(), other.Bus+".billing", to)
		// It does not even see the topic.
		if err = errors.Join(err, settled.Error()); !errors.Is(err, kerr.UnknownTopicOrPartition) {
			tries[user+" settles for another bus"] = err
		}
	}
	for what, err := range tries {
		if !errors.Is(err, kerr.TopicAuthorizationFailed) && !errors.Is(err, kerr.GroupAuthorizationFailed) && !errors.Is(err, kerr.ClusterAuthorizationFailed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// SE-03: none of the exported rights can be left out.
func TestNoRightIsTooMuch(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "each of 16 rights is missing once: half a minute")
	s := startStrict(t, "relay", "billing", "mail", "operator")
	all := rightsOf(t, options())
	for i, r := range all {
		if r.User == "mail" { // its rights are billing's
			continue
		}
		for left, op := range r.Operations {
			t.Run(fmt.Sprint(r.User, " ", i, " ", op), func(t *testing.T) {
				t.Parallel()
				opts := options()
				rights := rightsOf(t, opts)
				missing := rights[i]
				rights[i].Operations = slices.Delete(slices.Clone(missing.Operations), left, left+1)
				if err := dial(t, s.server.Addr(), opts).Declare(t.Context(), billing, mail); err != nil {
					t.Fatal(err)
				}
				if err := s.grant(t.Context(), rights); err != nil {
					t.Fatal(err)
				}
				ctx, _ := patience.Context(t.Context(), patience.Limit)
				if err := s.work(ctx, opts); !errors.Is(err, waybill.ErrMisconfigured) {
					t.Errorf("without %s on %s: %v", op, missing.Name, err)
				}
			})
		}
	}
}
