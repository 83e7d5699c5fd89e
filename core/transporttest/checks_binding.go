package transporttest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var bindingChecks = []named{
	{"binding-exact", ofSubscriber, bindingExact},
	{"binding-word", ofSubscriber, bindingWord},
	{"binding-tail", ofSubscriber, bindingTail},
	{"binding-wildcards", ofSubscriber, bindingAll},
	{"binding-overlap", ofSubscriber, bindingOverlap},
	{"bindings-add-up", ofSubscriber, bindingsAddUp},
	{"round-trip-topics", ofEither, roundTripTopics},
	{"round-trip-header-names", ofEither, roundTripHeaderNames},
	{"names-have-case", ofEither, namesHaveCase},
}

// everything returns the bindings for topics of one name: one wildcard, or each topic by itself.
func (k *kit) everything(name string, suffixes ...string) []string {
	if k.sub.Wildcards >= core.WildcardsTail {
		return []string{name + ".#"}
	}
	out := make([]string, len(suffixes))
	for i, s := range suffixes {
		out[i] = strings.TrimSuffix(name+"."+s, ".")
	}
	return out
}

// A binding without wildcards gets its topic, and no other.
func bindingExact(k *kit) {
	r, name := k.queue("a.b", "c")
	suffixes := []string{"a", "a.b", "a.b.c", "b", "c"}
	other := k.subscribe(k.name(), k.everything(name, suffixes...)...)
	var all, want []waybill.Envelope
	for i, suffix := range suffixes {
		m := message(name+"."+suffix, i)
		all = append(all, m)
		if suffix == "a.b" || suffix == "c" {
			want = append(want, m)
		}
	}
	k.publish(all...)
	k.exactly(all, k.consume(other, len(all)))
	k.exactly(want, k.consume(r, len(want)))
	k.nothing(r, "the queue is bound for two topics")
}

// In a binding * stands for one word, anywhere.
func bindingWord(k *kit) {
	k.needs(k.sub.Wildcards >= core.WildcardsWord, "SubscriberTraits.Wildcards = WildcardsWord")
	k.wildcards(map[string][]int{".*": {1}, ".user.*": {2}, ".*.created": {2, 4}, ".*.*.eu": {3, 5}, ".user.*.*": {3}})
}

// In a binding # as the last word stands for any number of words, none included.
func bindingTail(k *kit) {
	k.needs(k.sub.Wildcards >= core.WildcardsTail, "SubscriberTraits.Wildcards = WildcardsTail")
	k.wildcards(map[string][]int{".#": {0, 1, 2, 3, 4, 5}, ".user.#": {1, 2, 3}, ".*.#": {1, 2, 3, 4, 5}, ".*.created.#": {2, 3, 4, 5}})
}

// In a binding # stands for any number of words anywhere, and topics stay as they were published.
func bindingAll(k *kit) {
	k.needs(k.sub.Wildcards == core.WildcardsAll, "SubscriberTraits.Wildcards = WildcardsAll")
	k.wildcards(map[string][]int{".#.created": {2, 4}, ".#.eu": {3, 5}, ".#.created.#": {2, 3, 4, 5}, ".#.user.#": {1, 2, 3}})
}

// wildcards publishes to all topics and looks at what each of bindings gets, at a first attempt and at a second.
func (k *kit) wildcards(want map[string][]int) {
	name := k.name()
	var sent []waybill.Envelope
	suffixes := []string{"", "user", "user.created", "user.created.eu", "order.created", "order.created.eu"}
	for i, s := range suffixes {
		sent = append(sent, message(strings.TrimSuffix(name+"."+s, "."), i))
	}
	all := k.subscribe(name+"all", k.everything(name, suffixes...)...)
	receivers := map[string]core.Receiver{}
	for b := range want {
		receivers[b] = k.subscribe(k.name(), name+b)
	}
	k.publish(sent...)
	for _, d := range k.topics(all, sent) {
		k.settle(all, core.AckRetry(d, tier1, nil))
	}
	for _, d := range k.topics(all, sent) {
		k.settle(all, core.AckDone(d))
	}
	for b, r := range receivers {
		var fits []waybill.Envelope
		for _, i := range want[b] {
			fits = append(fits, sent[i])
		}
		k.settle(r, acks(core.AckDone, k.topics(r, fits)...)...)
	}
	for b, r := range receivers {
		k.nothing(r, "binding "+b)
	}
}

// topics receives exactly want and looks at the topics.
func (k *kit) topics(r core.Receiver, want []waybill.Envelope) []*waybill.Delivery {
	ds := k.receive(r, len(want))
	k.exactly(want, ds)
	for _, d := range ds {
		for i := range want {
			k.failIf(want[i].ID == d.Envelope.ID && want[i].Topic != d.Envelope.Topic,
				"attempt %d: the topic is %q, want the one it was published with, %q", d.Attempt, d.Envelope.Topic, want[i].Topic)
		}
	}
	return ds
}

// A queue gets one copy of a message, however many of its bindings fit.
//
// The check binds one queue twice for the same topic.
func bindingOverlap(k *kit) {
	name := k.name()
	bindings := []string{name + ".a", name + ".a"}
	if k.sub.Wildcards >= core.WildcardsWord {
		bindings = append(bindings, name+".*")
	}
	if k.sub.Wildcards >= core.WildcardsTail {
		bindings = append(bindings, name+".#", name+".a.#")
	}
	if k.sub.Wildcards == core.WildcardsAll {
		bindings = append(bindings, "#."+name+".a")
	}
	r := k.subscribe(name, bindings...)
	m := message(name+".a", 0)
	k.publish(m)
	k.exactly([]waybill.Envelope{m}, k.consume(r, 1))
	k.nothing(r, "a queue gets one copy, however many bindings fit")
}

// A subscription adds its bindings to those that the queue has, and removes none.
//
// The check subscribes with other bindings, as two releases of a program do.
func bindingsAddUp(k *kit) {
	r, name := k.queue("a")
	other := k.subscribe(name, name+".b")
	k.closeReceiver(r)
	k.closeReceiver(other)
	last := k.subscribe(name, name+".c")
	want := []waybill.Envelope{message(name+".a", 1), message(name+".b", 2), message(name+".c", 3)}
	k.publish(want...)
	k.exactly(want, k.consume(last, len(want)))
}

// printable returns the ASCII characters that are neither letters, digits nor one of without, in words of five.
func printable(without string) []string {
	var words []string
	var word strings.Builder
	for c := byte('!'); c <= '~'; c++ {
		if strings.IndexByte(without, c) >= 0 || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' {
			continue
		}
		word.WriteByte(c)
		if word.Len() == 5 {
			words = append(words, word.String())
			word.Reset()
		}
	}
	return append(words, word.String())
}

// A topic of any legal characters, and of 255 bytes, is bound and arrives as it was.
func roundTripTopics(k *kit) {
	name := k.name()
	var topics []string
	for _, word := range printable(".*#") {
		topics = append(topics, name+"."+word, name+".a"+word+"b", name+"."+word+".b")
	}
	for _, c := range printable(".*#") { // each alone
		for i := range len(c) {
			topics = append(topics, name+"."+c[i:i+1])
		}
	}
	topics = append(topics, name+".größe.日本.🚚", name+".UPPER.Title", name+"._x", name+".-", name+".1.2.3", name+".a.b.c.d.e.f.g.h.i.j.k.l.m",
		name+"."+strings.Repeat("x", waybill.MaxNameBytes-len(name)-1))
	r := k.subscribe(name, topics...)
	for i, t := range topics {
		m := message(t, 0)
		m.ID, m.Type = fmt.Sprintf("%s-%d", name, i), "text"
		k.publish(m)
		k.same(m, k.consume(r, 1)[0].Envelope, fmt.Sprintf("message with the topic %q", t))
	}
	k.nothing(r, "each topic was consumed once")
}

// Headers with any legal names and values, those that the broker interprets among them, arrive as they were.
func roundTripHeaderNames(k *kit) {
	r, name := k.queue("a")
	names := append(printable(""), "größe", "日本🚚", "with space", " ends ", "Content-Type", "content-length", "host", "x-custom", "a=b", "_", "0")
	for _, word := range printable("") {
		for i := range len(word) {
			names = append(names, "n"+word[i:i+1]+"n")
		}
	}
	for _, reserved := range k.h.ReservedNames {
		names = append(names, reserved, strings.ToLower(reserved), strings.ToUpper(reserved))
	}
	values := []string{"-1", "", "true", "größe 日本 🚚", " ends ", "one\r\ntwo", "\ttab", "%41+&=;,", `"quoted" \ 'single'`, "all"}
	for i := 0; i < len(names); i += 20 {
		want := message(name+".a", i)
		want.Headers = map[string]string{}
		for j, n := range names[i:min(i+20, len(names))] {
			if !waybill.ReservedHeader(n) {
				want.Headers[n] = values[(i+j)%len(values)]
			}
		}
		k.publish(want)
		d := k.receive(r, 1)[0]
		k.same(want, d.Envelope, "message "+strconv.Itoa(i))
		k.settle(r, core.AckRetry(d, 0, nil))
		k.same(want, k.consume(r, 1)[0].Envelope, "retried message "+strconv.Itoa(i))
	}
}

// Topics, queues and ids that differ in case are different.
func namesHaveCase(k *kit) {
	name := k.name()
	lower, upper := k.subscribe(name+"q", name+".a"), k.subscribe(name+"Q", name+".A")
	m, other := message(name+".a", 0), message(name+".A", 1)
	again := m
	m.ID, again.ID = name+"-id", name+"-ID"
	k.publish(m, other, again)
	k.exactly([]waybill.Envelope{m, again}, k.consume(lower, 2))
	k.exactly([]waybill.Envelope{other}, k.consume(upper, 1))
	k.nothing(lower, "the other message has another topic")
	k.nothing(upper, "the other messages have another topic")
}
