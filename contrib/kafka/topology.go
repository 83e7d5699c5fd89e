package kafka

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// Topology is what the brokers must hold for a bus and its queues: topics of Kafka, and rights. Export it, so that
// programs are Options.Passive, and their users may do no more than they must.
type Topology struct {
	Logs   []Log   `json:"topics"`
	Rights []Right `json:"rights,omitempty"`
}

// Log is a topic of Kafka.
type Log struct {
	Name       string            `json:"name"`
	Partitions int               `json:"partitions"`
	Replicas   int               `json:"replication_factor,omitempty"` // 0 = what the brokers say
	Config     map[string]string `json:"config"`
}

// Right is what a user may do with a topic or a group.
type Right struct {
	User       string   `json:"user"`
	Resource   string   `json:"resource"` // Topic or Group
	Name       string   `json:"name"`
	Operations []string `json:"operations"`
}

// Users are the names of users by what their programs do; an empty one is left out. Consumer is of the consumers of all
// queues of the topology: a service that is not trusted has a topology of its own, of its subscriptions.
type Users struct{ Relay, Consumer, Operator string }

// NewTopology returns the topology of a bus and the queues of subs, and the least rights of users on it.
func NewTopology(opts Options, users Users, subs ...core.Subscription) (Topology, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return Topology{}, err
	}
	var t Topology
	log := func(name string, compacted bool) {
		l := Log{Name: name, Partitions: o.Partitions, Replicas: o.Replicas, Config: map[string]string{}}
		if compacted {
			l.Partitions = 1
		}
		for key, value := range o.logConfig(compacted) {
			l.Config[key] = *value
		}
		t.Logs = append(t.Logs, l)
	}
	right := func(user, resource, name string, operations ...string) {
		if user != "" {
			t.Rights = append(t.Rights, Right{user, resource, name, operations})
		}
	}
	log(o.Bus, false)
	log(o.bindings(), true)
	right(users.Relay, "Topic", o.Bus, "Write", "DescribeConfigs")
	right(users.Relay, "Topic", o.bindings(), "Describe")
	right(users.Consumer, "Topic", o.Bus, "Read", "DescribeConfigs")
	right(users.Consumer, "Topic", o.bindings(), "Read")
	right(users.Operator, "Topic", o.Bus, "Describe", "DescribeConfigs")
	right(users.Operator, "Topic", o.bindings(), "Describe")
	for i := range subs {
		if err := problems(&subs[i]); err != nil {
			return Topology{}, err
		}
		queue := subs[i].Queue
		log(o.retry(queue), false)
		log(o.parked(queue), true)
		right(users.Consumer, "Group", o.group(queue), "Read")
		right(users.Consumer, "Topic", o.retry(queue), "Read", "Write")
		right(users.Consumer, "Topic", o.parked(queue), "Write")
		right(users.Operator, "Topic", o.parked(queue), "Read", "Write")
		right(users.Operator, "Topic", o.retry(queue), "Write")
	}
	return t, nil
}

// Text returns the topology for people.
func (t Topology) Text() string {
	var b strings.Builder
	for _, l := range t.Logs {
		fmt.Fprintf(&b, "topic %s (%s)\n", l.Name, l.describe())
	}
	for _, r := range t.Rights {
		fmt.Fprintf(&b, "user %s: %s on %s %s\n", r.User, strings.Join(r.Operations, ", "), strings.ToLower(r.Resource), r.Name)
	}
	return b.String()
}

func (l *Log) describe() string {
	list := []string{fmt.Sprint(l.Partitions, " partitions")}
	if l.Replicas > 0 {
		list = append(list, fmt.Sprint(l.Replicas, " replicas"))
	}
	for _, key := range slices.Sorted(maps.Keys(l.Config)) {
		list = append(list, key+"="+l.Config[key])
	}
	return strings.Join(list, ", ")
}

// JSON returns the topology as a document.
func (t Topology) JSON() string {
	text, _ := json.MarshalIndent(t, "", "  ") //nolint:errchkjson // strings and numbers
	return string(text) + "\n"
}

// Commands returns the topology as a script of Kafka's own tools. They connect as the variables BROKERS and CONFIG say:
// host:port, and a file of the client's settings.
func (t Topology) Commands() string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\nset -e\nset -- --bootstrap-server \"$BROKERS\" --command-config \"${CONFIG:-/dev/null}\"\n")
	for _, l := range t.Logs {
		fmt.Fprintf(&b, "kafka-topics.sh \"$@\" --create --if-not-exists --topic %s --partitions %d", l.Name, l.Partitions)
		if l.Replicas > 0 {
			fmt.Fprintf(&b, " --replication-factor %d", l.Replicas)
		}
		for _, key := range slices.Sorted(maps.Keys(l.Config)) {
			fmt.Fprintf(&b, " --config %s=%s", key, l.Config[key])
		}
		b.WriteByte('\n')
	}
	for _, r := range t.Rights {
		user := strings.ReplaceAll("User:"+r.User, "'", `'\''`)
		fmt.Fprintf(&b, "kafka-acls.sh \"$@\" --add --allow-principal '%s' --operation %s --%s %s\n", user, strings.Join(r.Operations, " --operation "),
			strings.ToLower(r.Resource), r.Name)
	}
	return b.String()
}

// Terraform returns the topology as resources of the provider Mongey/kafka, which asks for the number of replicas.
func (t Topology) Terraform() (string, error) {
	var b strings.Builder
	name := func(parts ...string) string {
		return strings.Map(func(r rune) rune {
			if bad(byte(r)) || r == '.' || r > '~' {
				return '_'
			}
			return r
		}, strings.Join(parts, "-"))
	}
	for _, l := range t.Logs {
		if l.Replicas == 0 {
			return "", waybill.Invalid("waybill/kafka: terraform", "Replicas: is not set; Terraform needs it")
		}
		fmt.Fprintf(&b, "resource \"kafka_topic\" %q {\n  name = %q\n  partitions = %d\n  replication_factor = %d\n  config = {\n",
			name(l.Name), l.Name, l.Partitions, l.Replicas)
		for _, key := range slices.Sorted(maps.Keys(l.Config)) {
			fmt.Fprintf(&b, "    %q = %q\n", key, l.Config[key])
		}
		b.WriteString("  }\n}\n\n")
	}
	for i, r := range t.Rights {
		for _, op := range r.Operations {
			user := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "${", "$${", "%{", "%%{").Replace("User:" + r.User)
			fmt.Fprintf(&b, "resource \"kafka_acl\" %q {\n  resource_type = %q\n  resource_name = %q\n  resource_pattern_type_filter = \"Literal\"\n"+
				"  acl_principal = \"%s\"\n  acl_host = \"*\"\n  acl_operation = %q\n  acl_permission_type = \"Allow\"\n}\n\n",
				name(fmt.Sprint("right", i+1), op), r.Resource, r.Name, user, op)
		}
	}
	return b.String(), nil
}

func problems(sub *core.Subscription) error {
	var p []string
	if sub.Queue == "" {
		p = append(p, "Queue: is empty; name it")
	}
	if strings.Contains(sub.Queue, "\x00") {
		p = append(p, "Queue: holds a zero byte; choose another name")
	}
	if slices.Contains(sub.Bindings, "") {
		p = append(p, "Bindings: one is empty; name topics")
	}
	return waybill.Invalid("waybill/kafka: subscription", p...)
}

// Declare makes the missing topics, bindings and positions of the bus and the queues of subs, also with
// Options.Passive. It grants no rights.
func (t *Transport) Declare(ctx context.Context, subs ...core.Subscription) error {
	const op = "declare"
	for i := range subs {
		if err := problems(&subs[i]); err != nil {
			return err
		}
	}
	if err := t.declare(ctx, op, map[string]bool{t.opts.Bus: false, t.opts.bindings(): true}, true); err != nil {
		return err
	}
	if err := t.open(ctx); err != nil {
		return err
	}
	for i := range subs {
		if err := t.prepare(ctx, op, &subs[i], true); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes what a queue lacks: its logs, its place at the beginning of them, its bindings.
func (t *Transport) prepare(ctx context.Context, op string, sub *core.Subscription, make bool) error {
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	retry, group := t.opts.retry(sub.Queue), t.opts.group(sub.Queue)
	if err := t.declare(ctx, op, map[string]bool{t.opts.Bus: false, retry: false, t.opts.parked(sub.Queue): true}, make); err != nil {
		return err
	}
	if err := t.bindings.learn(ctx, op); err != nil {
		return err
	}
	have, known := t.bindings.of(sub.Queue)
	if !make && len(have) == 0 && len(sub.Bindings) == 0 {
		return misconfigured(op, "the queue has no bindings: name some")
	}
	offsets, err := t.ofGroup(ctx, op, func() (kadm.OffsetResponses, error) { return t.admin.FetchOffsets(ctx, group) })
	switch {
	case err != nil:
		return err
	case known && len(offsets) == 0:
		return misconfigured(op, "the brokers have forgotten the positions of the group %q (offsets.retention.minutes): set them by kafka-consumer-groups.sh "+
			"--reset-offsets to where the queue should go on", group)
	case len(offsets) == 0:
		starts, err := t.admin.ListStartOffsets(ctx, t.opts.Bus, retry)
		if err == nil {
			err = starts.Error()
		}
		if err != nil {
			return t.link.because(op, err)
		}
		_, err = t.ofGroup(ctx, op, func() (kadm.OffsetResponses, error) {
			res, err := t.admin.CommitOffsets(ctx, group, starts.Offsets())
			if err == nil {
				err = res.Error()
			}
			if moved(err) { // another member was faster
				err = nil
			}
			return res, err
		})
		if err != nil {
			return err
		}
	}
	return t.bindings.add(ctx, op, sub.Queue, sub.Bindings)
}

// ofGroup asks the coordinator of a group, again while there is none: brokers make their log of positions at the first
// use.
func (t *Transport) ofGroup(ctx context.Context, op string, ask func() (kadm.OffsetResponses, error)) (kadm.OffsetResponses, error) {
	for {
		res, err := ask()
		switch {
		case err == nil, errors.Is(err, kerr.GroupIDNotFound):
			return res, nil
		case !matches(err, kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator) || pause(ctx, 100*time.Millisecond) != nil:
			return nil, t.link.because(op, err)
		}
	}
}

// Compare returns the differences between the brokers and the needs of the bus and the queues of subs.
func (t *Transport) Compare(ctx context.Context, subs ...core.Subscription) (found []admin.Difference, err error) {
	const op = "compare"
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	want, err := NewTopology(t.opts, Users{}, subs...)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(want.Logs))
	for i := range want.Logs {
		names[i] = want.Logs[i].Name
	}
	have, err := t.admin.ListTopics(ctx, names...)
	if err != nil {
		return nil, t.link.because(op, err)
	}
	configs, err := t.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, t.link.because(op, err)
	}
	for i := range want.Logs {
		l := &want.Logs[i]
		differs := func(what string, want, have any) {
			if w, h := fmt.Sprint(want), fmt.Sprint(have); w != h {
				found = append(found, admin.Difference{Object: "topic " + l.Name + what, Want: w, Have: h})
			}
		}
		d := have[l.Name]
		if errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
			differs("", l.describe(), "missing")
			continue
		}
		c, err := configs.On(l.Name, nil)
		if err = cmp.Or(err, d.Err, c.Err); err != nil {
			return nil, classify(op, fmt.Errorf("topic %q: %w", l.Name, err))
		}
		differs(": partitions", l.Partitions, len(d.Partitions))
		if l.Replicas > 0 {
			differs(": replicas", l.Replicas, d.Partitions.NumReplicas())
		}
		for _, x := range c.Configs {
			if value, ok := l.Config[x.Key]; ok {
				differs(": "+x.Key, value, x.MaybeValue())
			}
		}
	}
	if have[t.opts.bindings()].Err != nil {
		return found, nil
	}
	if err := t.bindings.learn(ctx, op); err != nil {
		return nil, err
	}
	for i := range subs {
		sub := &subs[i]
		bound, known := t.bindings.of(sub.Queue)
		offsets, err := t.ofGroup(ctx, op, func() (kadm.OffsetResponses, error) { return t.admin.FetchOffsets(ctx, t.opts.group(sub.Queue)) })
		if err != nil {
			return nil, err
		}
		if known && len(offsets) == 0 {
			found = append(found, admin.Difference{Object: "group " + t.opts.group(sub.Queue), Want: "positions", Have: "missing"})
		}
		for _, b := range sub.Bindings {
			if !slices.Contains(bound, b) {
				found = append(found, admin.Difference{Object: "queue " + sub.Queue + ": binding " + b, Want: "bound", Have: "missing"})
			}
		}
		for _, b := range bound {
			if b != "" && !slices.Contains(sub.Bindings, b) {
				found = append(found, admin.Difference{Object: "queue " + sub.Queue + ": binding " + b, Want: "none", Have: "bound"})
			}
		}
	}
	return found, nil
}

// Unused returns the queues of the bus that none of subs has.
func (t *Transport) Unused(ctx context.Context, subs ...core.Subscription) ([]string, error) {
	const op = "list unused queues"
	if err := t.bindings.learn(ctx, op); err != nil {
		return nil, err
	}
	t.bindings.mu.Lock()
	defer t.bindings.mu.Unlock()
	var list []string
	for queue := range t.bindings.queues {
		if !slices.ContainsFunc(subs, func(s core.Subscription) bool { return s.Queue == queue }) {
			list = append(list, queue)
		}
	}
	slices.Sort(list)
	return list, nil
}

// DeleteQueue deletes the bindings, the group and the logs of a queue. If it has receivers, retries or parked messages,
// it stays, and the error matches waybill.ErrInFlight. Its unread messages stay in the bus.
func (t *Transport) DeleteQueue(ctx context.Context, queue string) error {
	const op = "delete queue"
	ctx, cancel := t.bounded(ctx)
	defer cancel()
	group, retry := t.opts.group(queue), t.opts.retry(queue)
	refuse := func(format string, args ...any) error {
		return fail(op, waybill.ClassRejected, waybill.ReasonNone, fmt.Errorf("queue %q has %s (%w)", queue, fmt.Sprintf(format, args...), waybill.ErrInFlight))
	}
	lags, err := t.admin.Lag(ctx, group)
	if err != nil {
		return t.link.because(op, err)
	}
	lag := lags[group]
	if n := len(lag.Members); n > 0 {
		return refuse("%d receivers: stop them", n)
	}
	for _, p := range lag.Lag[retry] {
		if p.Lag > 0 {
			return refuse("retries that wait: let its consumer end them")
		}
	}
	if n, err := t.ParkedDepth(ctx, queue); err != nil && !errors.Is(err, waybill.ErrNotFound) {
		return err
	} else if n > 0 {
		return refuse("%d parked messages: replay or purge them", n)
	}
	bound, _ := t.bindings.of(queue)
	for _, b := range slices.Backward(slices.Sorted(slices.Values(bound))) { // the queue itself is the last one
		if err := t.store(ctx, op, &kgo.Record{Topic: t.opts.bindings(), Key: []byte(queue + "\x00" + b)}); err != nil {
			return err
		}
	}
	if _, err := t.admin.DeleteGroup(ctx, group); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return t.link.because(op, err)
	}
	res, err := t.admin.DeleteTopics(ctx, retry, t.opts.parked(queue))
	for _, r := range res {
		if err == nil && !errors.Is(r.Err, kerr.UnknownTopicOrPartition) {
			err = r.Err
		}
	}
	if err != nil {
		return t.link.because(op, err)
	}
	return t.bindings.learn(ctx, op)
}
