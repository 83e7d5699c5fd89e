package check

// Matches reports whether topic fits binding, both split into words at their dots: * is one word, # any number, none
// included. It goes back only to the last #, so it takes at most len(binding)×len(topic) steps.
func Matches(binding, topic []string) bool {
	b, w := 0, 0
	hash, mark := -1, 0 // last # seen, and the word after those it swallowed
	for w < len(topic) {
		switch {
		case b < len(binding) && binding[b] == "#":
			hash, mark = b, w
			b++
		case b < len(binding) && (binding[b] == "*" || binding[b] == topic[w]):
			b++
			w++
		case hash >= 0:
			mark++
			b, w = hash+1, mark
		default:
			return false
		}
	}
	for b < len(binding) && binding[b] == "#" {
		b++
	}
	return b == len(binding)
}
