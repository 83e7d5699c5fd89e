package transporttest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Names that a broker could take for something else.
var nameChecks = []named{
	{"round-trip-topics", ofEither, roundTripTopics},
	{"round-trip-header-names", ofEither, roundTripHeaderNames},
	{"names-have-case", ofEither, namesHaveCase},
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
