package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/waybill-go/waybill"
)

// The settings of logs, by Kafka's names.
const (
	cleanupPolicy = "cleanup.policy"
	retentionTime = "retention.ms"
	minInSync     = "min.insync.replicas"
	maxBytes      = "max.message.bytes"
	unclean       = "unclean.leader.election.enable"
)

// defaultMaxBytes is the brokers' default of max.message.bytes.
const defaultMaxBytes = 1048588

// settings are what the brokers say about the log of the bus, read when it is opened.
type settings struct {
	maxMessage, minInSync int
	synced                bool
	retention             time.Duration // 0 = for ever
}

// logConfig returns the settings of a log of messages, or of the last value of each key.
func (o *Options) logConfig(compacted bool) map[string]*string {
	c := map[string]*string{cleanupPolicy: new("delete"), retentionTime: new(strconv.FormatInt(o.Retention.Milliseconds(), 10))}
	if compacted {
		c = map[string]*string{cleanupPolicy: new("compact")}
	}
	if o.MinInSync > 0 {
		c[minInSync] = new(strconv.Itoa(o.MinInSync))
	}
	return c
}

// declare makes the logs that are missing, compacted or not, and waits until the brokers know them. Without make it
// only looks.
func (t *Transport) declare(ctx context.Context, op string, logs map[string]bool, make bool) error {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	names := slices.Collect(maps.Keys(logs))
	for made := false; ; made = true {
		have, err := t.admin.ListTopics(ctx, names...)
		if err != nil {
			return t.link.because(op, err)
		}
		missing := false
		for name, compacted := range logs {
			switch err := have[name].Err; {
			case errors.Is(err, kerr.UnknownTopicOrPartition) && !make:
				return misconfigured(op, "the topic %q does not exist: create it, or leave Options.Passive off (%w)", name, err)
			case errors.Is(err, kerr.UnknownTopicOrPartition):
				missing = true
				if made { // and not known everywhere
					continue
				}
				if err := t.create(ctx, name, compacted); err != nil {
					return t.noTopic(ctx, op, name, err)
				}
			case errors.Is(err, kerr.LeaderNotAvailable):
				missing = true
			case err != nil:
				return classify(op, fmt.Errorf("topic %q: %w", name, err))
			}
		}
		if !missing {
			return t.readable(ctx, op, names)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return t.link.because(op, err)
		}
	}
}

// noTopic is the error of a topic that could not be created.
func (t *Transport) noTopic(ctx context.Context, op, name string, err error) error {
	if ctx.Err() != nil || classify(op, err).Class == waybill.ClassOutage && !errors.As(err, new(*kerr.Error)) {
		return t.link.because(op, err)
	}
	return misconfigured(op, "the topic %q cannot be created: %w", name, err)
}

// create makes one log. Another process can have been faster.
func (t *Transport) create(ctx context.Context, name string, compacted bool) error {
	replicas, partitions := int16(-1), int32(t.opts.Partitions)
	if t.opts.Replicas > 0 {
		replicas = int16(t.opts.Replicas)
	}
	if compacted {
		partitions = 1
	}
	res, err := t.admin.CreateTopic(ctx, partitions, replicas, t.opts.logConfig(compacted), name)
	if err == nil {
		err = res.Err
	}
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return err
}

// readable waits until all partitions answer: a broker can list a topic before it knows it.
func (t *Transport) readable(ctx context.Context, op string, names []string) error {
	for {
		ends, err := t.admin.ListEndOffsets(ctx, names...)
		if err == nil {
			err = ends.Error()
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil || !matches(err, kerr.UnknownTopicOrPartition, kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.UnknownTopicID):
			return t.link.because(op, err)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return t.link.because(op, err)
		}
	}
}

// look reads the settings of the log of the bus, and refuses those with which messages are lost.
func (t *Transport) look(ctx context.Context) (settings, error) {
	const op = "look at the bus"
	list, err := t.admin.DescribeTopicConfigs(ctx, t.opts.Bus)
	if err != nil {
		return settings{}, t.link.because(op, err)
	}
	c, err := list.On(t.opts.Bus, nil)
	if err == nil {
		err = c.Err
	}
	if err != nil {
		return settings{}, classify(op, fmt.Errorf("topic %q: %w", t.opts.Bus, err))
	}
	value := map[string]string{}
	for _, x := range c.Configs {
		value[x.Key] = x.MaybeValue()
	}
	if p := value[cleanupPolicy]; p != "delete" && p != "" {
		return settings{}, misconfigured(op, "the topic %q has %s %s, with which messages are deleted unread: set it to delete", t.opts.Bus, cleanupPolicy, p)
	}
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(value[name]); err == nil {
			return n
		}
		return otherwise
	}
	if n := number(maxBytes, defaultMaxBytes); n < 2*headerRoom {
		return settings{}, misconfigured(op, "the topic %q has %s %d, and the headers of a message may take half of that: raise it to %d at least",
			t.opts.Bus, maxBytes, n, 2*headerRoom)
	}
	s := settings{maxMessage: number(maxBytes, defaultMaxBytes), minInSync: number(minInSync, 1)}
	if ms := number(retentionTime, -1); ms > 0 {
		s.retention = time.Duration(ms) * time.Millisecond
	}
	topics, err := t.admin.ListTopics(ctx, t.opts.Bus)
	if err != nil {
		return settings{}, t.link.because(op, err)
	}
	d := topics[t.opts.Bus]
	if d.Err != nil {
		return settings{}, classify(op, fmt.Errorf("topic %q: %w", t.opts.Bus, d.Err))
	}
	s.synced = s.minInSync >= 2 && d.Partitions.NumReplicas() >= 3 && value[unclean] != "true"
	return s, nil
}

// writable reports whether each partition of the bus has a leader and enough replicas in sync.
func (t *Transport) writable(ctx context.Context, least int) error {
	const op = "check"
	topics, err := t.admin.ListTopics(ctx, t.opts.Bus)
	if err != nil {
		return t.link.because(op, err)
	}
	for _, p := range topics[t.opts.Bus].Partitions.Sorted() {
		if enough := min(least, len(p.Replicas)); p.Leader < 0 || len(p.ISR) < enough {
			return outage(op, fmt.Errorf("partition %d of the topic %q has leader %d and %d replicas in sync of the %d that a message needs: start the missing brokers",
				p.Partition, t.opts.Bus, p.Leader, len(p.ISR), enough))
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
