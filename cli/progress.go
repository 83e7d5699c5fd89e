package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

// progressEvery is how long a line of progress stands at least.
const progressEvery = 500 * time.Millisecond

// progress shows how far long work is: on a terminal in one line, else line by line. A nil one shows nothing.
type progress struct {
	w           io.Writer
	tty         bool
	now         func() time.Time
	began, last time.Time
	shown       bool
	dry         bool // nothing is done
}

func (c *command) progressFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.progress, "progress", false, "show the progress although standard error is no terminal")
}

// newProgress returns nil if no terminal shows it.
func (c *command) newProgress() *progress {
	tty := isTerminal(c.io.Err)
	if !tty && !c.progress {
		return nil
	}
	return &progress{w: c.io.Err, tty: tty, now: time.Now, began: time.Now()}
}

// dryRun makes the texts those of a run that changes nothing, if dry.
func (p *progress) dryRun(dry bool) *progress {
	if p != nil {
		p.dry = dry
	}
	return p
}

// at shows that done of total is done; a total of 0 is unknown.
func (p *progress) at(what string, done, total int64) {
	if p == nil || !p.last.IsZero() && p.now().Sub(p.last) < progressEvery {
		return
	}
	p.last, p.shown = p.now(), true
	text := what + " " + grouped(done)
	if p.dry {
		text = "would be " + text
	}
	if total > 0 {
		text += fmt.Sprintf(" of %s (%d %%)", grouped(total), done*100/total)
	}
	if rate := float64(done) / p.last.Sub(p.began).Seconds(); done > 0 && p.last.After(p.began) {
		text += fmt.Sprintf(", %s/s", grouped(int64(rate)))
		if left := float64(total-done) / rate; total > done {
			text += fmt.Sprintf(", %s left", ago(time.Duration(min(left, 1e9)*float64(time.Second)).Round(time.Second)))
		}
	}
	if p.tty {
		say(p.w, "\r%s\x1b[K", text)
		return
	}
	say(p.w, "%s\n", text)
}

// end clears the line.
func (p *progress) end() {
	if p != nil && p.tty && p.shown {
		say(p.w, "\r\x1b[K")
	}
}

// grouped writes a number with a comma after each thousand.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// records is "1 record", "2 records".
func records(n int) string { return counted(n, "record") }

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(int64(n)) + " " + what + "s"
}
