package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// partitionByKey spreads messages over queues that are there.
func partitionByKey(ch *amqp.Channel, queues ...string) error {
	err := errors.Join(
		ch.ExchangeDeclare("billing.by-key", "x-consistent-hash", true, false, false, false,
			amqp.Table{"hash-header": "cloudEvents_partitionkey"}),
		ch.ExchangeDeclare("billing.by-id", "x-consistent-hash", true, false, false, false, amqp.Table{"hash-property": "message_id"}))
	for _, queue := range queues { // "1" is the weight; a queue with "2" gets twice as many keys
		err = errors.Join(err, ch.QueueBind(queue, "1", "billing.by-key", false, nil),
			ch.QueueBind(queue, "1", "billing.by-id", false, nil))
	}
	return errors.Join(err, // last, when there is a way to the queues
		ch.ExchangeBind("billing.by-key", "orders.#", "shop", false, nil), // topics with keys
		ch.ExchangeBind("billing.by-id", "mails.#", "shop", false, nil))   // topics without
}

// OR-01: the ordering key travels in a header that a consistent hash exchange can spread messages by: all of a key are
// in one queue, in order, a retried one included; those without a key are spread by their id. The users may configure
// nothing, and the queues have one active consumer.
func TestPartitionsByKey(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	opts := rabbitmq.Options{Exchange: "shop"}
	var subs []core.Subscription
	for _, queue := range []string{"billing-0", "billing-1", "billing-2"} {
		subs = append(subs, core.Subscription{Queue: queue, InOrder: true, RetryDelays: []time.Duration{100 * time.Millisecond}})
	}
	_, relayURL, consumerURL, _ := provision(t, mq, topology.Of(opts.TopologyOptions(), subs...))
	ch := testenv.Channel(t, mq.URL)
	needHashExchanges(t, mq)
	if err := partitionByKey(ch, "billing-0", "billing-1"); err != nil {
		t.Fatal(err)
	}
	for _, exchange := range []string{"billing.by-key", "billing.by-id"} {
		if err := ch.QueueBind("billing-2", "4", exchange, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	policiesKnown(t, mq, opts)
	opts.Passive, opts.ManagementURL, opts.PipelineKeys = true, mq.ManagementURL, true
	relay, consumer := dial(t, relayURL, opts), dial(t, consumerURL, opts)

	const keys, each, unkeyed, retried = 60, 6, 120, "k07-1"
	var batch []waybill.Envelope
	for n := range each {
		for k := range keys {
			e := envelope(fmt.Sprintf("k%02d-%d", k, n), "orders.placed")
			e.Key = e.ID[:3]
			batch = append(batch, e)
		}
	}
	for i := range unkeyed {
		batch = append(batch, envelope(fmt.Sprintf("mail-%d", i), "mails.wanted"), envelope(fmt.Sprintf("order-%d", i), "orders.placed"))
	}
	if err := relay.Publish(t.Context(), batch).FirstErr(); err != nil { // an unroutable one would be an error
		t.Fatal(err)
	}

	idle, moved := patience.Context(t.Context(), patience.Limit)
	ctx, cancel := context.WithCancel(idle)
	defer cancel()
	var mu sync.Mutex
	left := len(batch) + 1 // one comes twice
	arrived := map[string][]string{}
	var wg sync.WaitGroup
	for _, sub := range subs {
		r := subscribe(t, consumer, sub)
		wg.Go(func() {
			for {
				deliveries, err := r.Receive(ctx, 50)
				if err != nil {
					return // all have come, or no more come
				}
				var acks []core.Ack
				moved()
				mu.Lock()
				for _, d := range deliveries {
					ack := core.AckDone(d)
					if d.Envelope.ID == retried && d.Attempt == 1 {
						ack = core.AckRetry(d, 50*time.Millisecond, errors.New("not now"))
					}
					acks = append(acks, ack)
					arrived[sub.Queue] = append(arrived[sub.Queue], fmt.Sprintf("%s/%d", d.Envelope.ID, d.Attempt))
				}
				mu.Unlock()
				if err := r.Settle(t.Context(), acks).FirstErr(); err != nil {
					t.Error(err)
				}
				mu.Lock()
				if left -= len(deliveries); left == 0 {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if left != 0 {
		t.Fatalf("%d messages are missing", left)
	}

	home, count := map[string]string{}, map[string]map[string]int{} // key to queue; kind to queue to messages
	last := map[string]string{}
	for queue, messages := range arrived {
		for _, m := range messages {
			kind, rest, _ := strings.Cut(m, "-")
			if rest, attempt, _ := strings.Cut(rest, "/"); kind[0] == 'k' {
				if h := home[kind]; h != "" && h != queue {
					t.Errorf("%s is in %s, others of its key in %s", m, queue, h)
				}
				if attempt == "1" && rest <= last[kind] {
					t.Errorf("%s came after %s", m, last[kind])
				}
				home[kind] = queue
				last[kind] = max(last[kind], rest)
				kind = "keyed"
			}
			if count[kind] == nil {
				count[kind] = map[string]int{}
			}
			count[kind][queue]++
		}
	}
	t.Log(count)
	for _, kind := range []string{"keyed", "mail"} {
		if n := count[kind]; len(n) != len(subs) || n["billing-2"] <= n["billing-0"] || n["billing-2"] <= n["billing-1"] {
			t.Errorf("%s messages are not spread by weight: %v", kind, n)
		}
	}
	if !slices.Contains(arrived[home["k07"]], retried+"/2") {
		t.Errorf("the retry of %s did not come to %s", retried, home["k07"])
	}
	if n := count["order"]; len(n) != 1 { // as the documentation says
		t.Errorf("without a key, by an exchange that looks at the key: in several queues: %v", n)
	}
	if differences, err := consumer.Drift(t.Context()); err != nil || len(differences) != 0 {
		t.Errorf("drift: %v, %v", differences, err)
	}
}

// needHashExchanges ends the test where an own broker, given by WAYBILL_TEST_RABBITMQ, has no consistent hash
// exchanges.
func needHashExchanges(t *testing.T, mq *testenv.MQ) {
	t.Helper()
	err := testenv.Channel(t, mq.URL).ExchangeDeclare("spread", "x-consistent-hash", true, false, false, false, nil)
	var refused *amqp.Error
	switch {
	case err == nil:
	case errors.As(err, &refused) && refused.Code == amqp.CommandInvalid && os.Getenv("WAYBILL_TEST_RABBITMQ") != "":
		tier.Missing(t, "the broker has no consistent hash exchanges: rabbitmq-plugins enable rabbitmq_consistent_hash_exchange (%v)", err)
	default:
		t.Fatalf("consistent hash exchanges: %v", err)
	}
}
