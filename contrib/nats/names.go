package nats

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// escape percent-encodes the bytes of s that bad reports, and the percent sign.
func escape(s string, bad func(c byte) bool) string {
	var out []byte
	for i := range len(s) {
		switch c := s[i]; {
		case c == '%' || bad(c):
			if out == nil {
				out = append(make([]byte, 0, len(s)+16), s[:i]...)
			}
			out = fmt.Appendf(out, "%%%02X", c)
		case out != nil:
			out = append(out, c)
		}
	}
	if out == nil {
		return s
	}
	return string(out)
}

// unescape decodes what escape has encoded. Other text stays.
func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

// escapeTopic returns a topic as the end of a subject. Dots stay, since topics are words between dots, too.
func escapeTopic(topic string) string {
	return escape(topic, func(c byte) bool { return c <= ' ' || c == 0x7f || c == '*' || c == '>' })
}

// escapeQueue returns a queue's name as a consumer's name, which is one word of a subject, too.
func escapeQueue(queue string) string {
	return escape(queue, func(c byte) bool { return c <= ' ' || c == 0x7f || strings.IndexByte(`.*>/\`, c) >= 0 })
}

// patterns returns the subject patterns that fit what binding fits, below prefix, which ends in a dot. A tail also
// stands for no word, which > does not.
func patterns(prefix, binding string) []string {
	words := strings.Split(binding, ".")
	tail := words[len(words)-1] == "#"
	if tail {
		words = words[:len(words)-1]
	}
	for i, w := range words {
		if w != "*" {
			words[i] = escapeTopic(w)
		}
	}
	head := prefix + strings.Join(words, ".")
	switch {
	case tail && len(words) == 0:
		return []string{prefix + ">"}
	case tail:
		return []string{head, head + ".>"}
	}
	return []string{head}
}

// fits reports whether pattern fits subject.
func fits(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, w := range p {
		switch {
		case i >= len(s):
			return false
		case w == ">":
			return true
		case w != "*" && w != s[i]:
			return false
		}
	}
	return len(p) == len(s)
}

// disjoint returns patterns of which no two fit the same subject, and which fit at least what list fits.
func disjoint(list []string) []string {
	var out []string
	for _, p := range list {
		for i := 0; i < len(out); i++ {
			if wider, overlap := union(out[i], p); overlap {
				p, out, i = wider, slices.Delete(out, i, i+1), -1
			}
		}
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// union returns a pattern that fits what a or b fits, if there is a subject that both fit.
func union(a, b string) (wider string, overlap bool) {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	var out []string
	for i := 0; i < len(x) && i < len(y); i++ {
		switch {
		case x[i] == ">" || y[i] == ">":
			return strings.Join(append(out, ">"), "."), true
		case x[i] == y[i]:
			out = append(out, x[i])
		case x[i] == "*" || y[i] == "*":
			out = append(out, "*")
		default:
			return "", false
		}
	}
	return strings.Join(out, "."), len(x) == len(y)
}
