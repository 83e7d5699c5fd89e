package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"golang.org/x/term"
)

// isTerminal reports whether f is a file of a terminal.
func isTerminal(f any) bool {
	file, ok := f.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(file.Fd()))
}

// confirm asks before a command destroys something, and returns an error unless the answer is yes. The question begins
// with a verb.
func (c *command) confirm(ctx context.Context, format string, a ...any) error {
	what := fmt.Sprintf(format, a...)
	if c.yes {
		return nil
	}
	if !isTerminal(c.io.In) {
		return withCode(ExitRefused, "%s: nothing was changed, since nobody can be asked (standard input is no terminal): repeat it with --yes", what)
	}
	say(c.io.Err, "%s? [y/N] ", clean(what))
	answer := make(chan string, 1)
	go func() { // it stays behind when ctx ends: a read of a terminal cannot be ended
		line, _ := bufio.NewReader(c.io.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
	case <-ctx.Done():
	}
	return withCode(ExitRefused, "not confirmed: nothing was changed")
}
