package nats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
)

// A queue is a durable consumer, and its bindings stand in its metadata. Two processes can add bindings at the same
// time, and the later write wins. So each reads again after it has written, until both are there. Streams that others
// made are checked for settings with which confirmed messages would be lost.

// metaBindings is the consumer's metadata with its bindings, separated by spaces.
const metaBindings = "waybill-bindings"

// stream returns the stream name.
func (t *Transport) stream(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := t.current.Load().js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, misconfigured("look at a stream", "the stream %q does not exist: create it, or let a transport without Options.Passive do so (%w)", name, err)
	} else if err != nil {
		return nil, classify("look at stream "+name, err)
	}
	return s, nil
}

// declareStreams makes the streams that are missing, and returns the state of the first: that of the bus. The other one
// keeps parked messages without any consumer.
func (t *Transport) declareStreams(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	bus, err := t.declareStream(ctx, jetstream.StreamConfig{
		Name: t.opts.Bus, Subjects: []string{t.topics + ">", t.queues + "*"}, Retention: jetstream.InterestPolicy,
	})
	if err != nil {
		return nil, err
	}
	_, err = t.declareStream(ctx, jetstream.StreamConfig{
		Name: t.opts.Bus + "-parked", Subjects: []string{t.parked + "*"}, Retention: jetstream.LimitsPolicy,
	})
	return bus, err
}

func (t *Transport) declareStream(ctx context.Context, want jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	const op = "declare"
	want.Storage, want.Discard, want.Replicas = jetstream.FileStorage, jetstream.DiscardNew, t.opts.Replicas
	js := t.current.Load().js
	s, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) && !t.opts.Passive {
		s, err = js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			s, err = js.Stream(ctx, want.Name) // another process was faster
		}
	}
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, misconfigured(op, "the stream %q does not exist: create it, or leave Options.Passive off (%w)", want.Name, err)
	case err != nil:
		e := classify(op, err)
		if _, ok := errors.AsType[jetstream.JetStreamError](err); ok && e.Class == waybill.ClassRejected {
			return nil, misconfigured(op, "the stream %q cannot be made: remove what stands against it, or choose another Options.Bus (%w)", want.Name, err)
		}
		return nil, e
	}
	info := s.CachedInfo()
	have := info.Config
	missing := slices.ContainsFunc(want.Subjects, func(s string) bool { return !slices.Contains(have.Subjects, s) })
	if missing || have.Retention != want.Retention || have.Discard != want.Discard || !t.opts.Passive && have.Replicas != want.Replicas {
		return nil, misconfigured(op, "the stream %q has the subjects %v, retention %v, discard %v and %d replicas, want %v, %v, %v and %d: "+
			"change it, or the options, or choose another Options.Bus", want.Name, have.Subjects, have.Retention, have.Discard, have.Replicas,
			want.Subjects, want.Retention, want.Discard, want.Replicas)
	}
	if setting, cure := dangerous(&have); setting != "" {
		return nil, misconfigured(op, "the stream %q has the setting %s, with which confirmed messages are lost, changed or never settled: %s, "+
			"or choose another Options.Bus", want.Name, setting, cure)
	}
	return info, nil
}

// dangerous names a setting of a stream with which its messages are not safe, and what to do about it.
func dangerous(c *jetstream.StreamConfig) (setting, cure string) {
	switch {
	case c.Storage != jetstream.FileStorage:
		return "storage memory", "make it anew with storage file"
	case c.PersistMode != jetstream.DefaultPersistMode:
		return "persist_mode async", "make it anew with the default persist_mode"
	case c.MaxAge > 0:
		return fmt.Sprintf("max_age %s", c.MaxAge), "set it to 0"
	case c.MaxMsgsPerSubject > 0 && !c.DiscardNewPerSubject:
		return fmt.Sprintf("max_msgs_per_subject %d", c.MaxMsgsPerSubject), "set it to -1, or add discard_new_per_subject"
	case c.NoAck:
		return "no_ack true", "set it to false"
	case c.SubjectTransform != nil:
		return "subject_transform", "remove it"
	case c.Sealed:
		return "sealed true", "make it anew without"
	}
	return "", ""
}

// wanted returns the subjects that a queue is bound for: by its bindings, or, if another program made it, by its
// filters.
func (t *Transport) wanted(c *jetstream.ConsumerConfig) []string {
	bindings, ours := c.Metadata[metaBindings]
	if !ours {
		if len(c.FilterSubjects) == 0 && c.FilterSubject == "" {
			return []string{">"}
		}
		return append([]string{c.FilterSubject}, c.FilterSubjects...)
	}
	var list []string
	for b := range strings.FieldsSeq(bindings) {
		list = append(list, patterns(t.topics, b)...)
	}
	return list
}

// declareQueue makes the consumer of r, or adds the missing settings to it, and keeps its state.
func (t *Transport) declareQueue(ctx context.Context, r *receiver) error {
	op := "subscribe to queue " + r.sub.Queue
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	s, err := t.stream(ctx, t.opts.Bus)
	if err != nil {
		return err
	}
	for range 5 { // until what was written is what is read: another process may write at the same time
		var have jetstream.ConsumerConfig
		c, err := s.Consumer(ctx, r.name)
		missing := errors.Is(err, jetstream.ErrConsumerNotFound)
		switch {
		case missing && t.opts.Passive:
			return misconfigured(op, "the consumer %q of the stream %q does not exist: create it, or leave Options.Passive off (%w)", r.name, t.opts.Bus, err)
		case missing:
			have = jetstream.ConsumerConfig{
				Durable: r.name, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverNewPolicy, MaxDeliver: -1,
				MaxAckPending: -1, AckWait: t.opts.HoldFor, Metadata: map[string]string{metaBindings: ""},
			}
		case err != nil:
			return classify(op, err)
		default:
			have = c.CachedInfo().Config
		}
		want := have
		bindings, ours := have.Metadata[metaBindings]
		list := strings.Fields(bindings)
		for _, b := range r.sub.Bindings {
			if !slices.Contains(list, b) {
				list = append(list, b)
			}
		}
		added := strings.Join(list, " ")
		switch {
		case have.AckPolicy != jetstream.AckExplicitPolicy || have.MaxDeliver > 0 || have.DeliverSubject != "" || ours && have.MaxAckPending > 0:
			return misconfigured(op, "the consumer %q of the stream %q must be a pull consumer with explicit acks, max_deliver -1 and "+
				"max_ack_pending -1: change it, or delete it when it is empty", r.name, t.opts.Bus)
		case have.InactiveThreshold > 0 || have.MemoryStorage || have.HeadersOnly:
			return misconfigured(op, "the consumer %q of the stream %q has inactive_threshold %s, mem_storage %v and headers_only %v: it would be deleted with "+
				"its messages, or give no bodies; want 0, false and false", r.name, t.opts.Bus, have.InactiveThreshold, have.MemoryStorage, have.HeadersOnly)
		case !missing && have.AckWait != t.opts.HoldFor && (t.opts.Passive || !ours):
			return misconfigured(op, "the consumer %q has ack_wait %s: set Options.HoldFor to it", r.name, have.AckWait)
		case !missing && bindings == added && have.AckWait == t.opts.HoldFor:
			r.learn(c.CachedInfo())
			return nil
		case t.opts.Passive || !ours:
			return misconfigured(op, "the consumer %q has not all bindings of the subscription (%s): add them, or leave them empty", r.name, strings.Join(r.sub.Bindings, " "))
		}
		want.AckWait, want.Metadata = t.opts.HoldFor, maps.Clone(have.Metadata)
		want.Metadata[metaBindings] = added
		want.FilterSubject, want.FilterSubjects = "", append(disjoint(t.wanted(&want)), r.own)
		if _, err := s.CreateOrUpdateConsumer(ctx, want); err != nil {
			e := classify(op, err)
			if e.Class == waybill.ClassRejected {
				return misconfigured(op, "the consumer %q cannot be made: %w", r.name, err)
			}
			return e
		}
		t.routes.stale.Store(true)
	}
	return outage(op, errors.New("other processes change the queue's bindings all the time"))
}
