package config

import (
	"errors"
	"strings"

	"github.com/goccy/go-yaml"
)

// errorLine returns the line of a syntax error, 1 if it tells none.
func errorLine(err error) int {
	if e, ok := errors.AsType[yaml.Error](err); ok {
		if tok := e.GetToken(); tok != nil && tok.Position != nil {
			return tok.Position.Line
		}
	}
	return 1
}

// errorText returns the text of err, without the lines of the file, which can hold secrets.
func errorText(err error) string {
	if e, ok := errors.AsType[yaml.Error](err); ok {
		return e.GetMessage()
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return first
}
