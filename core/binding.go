package core

import (
	"strings"

	"github.com/waybill-go/waybill/internal/check"
)

// MatchBinding reports whether topic fits binding: * stands for one word, # for any number of words, none included. It
// is for transports that filter what their broker cannot.
func MatchBinding(binding, topic string) bool {
	return binding == topic || strings.ContainsAny(binding, "*#") && check.Matches(strings.Split(binding, "."), strings.Split(topic, "."))
}
