package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
)

// terminal opens a pseudo terminal: bytes written to keyboard are read from tty.
func terminal(tb testing.TB) (keyboard, tty *os.File) {
	tb.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		tb.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tty.Close() })
	return keyboard, tty
}

// question is an output that calls asked once a question is there.
type question struct {
	bytes.Buffer
	asked func()
}

func (q *question) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("[y/N]")) {
		q.asked()
	}
	return q.Buffer.Write(p)
}

// OP-01: on a terminal what destroys is asked about, and only yes is yes.
func TestConfirm(t *testing.T) {
	t.Parallel()
	s := records(t)
	keyboard, tty := terminal(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ask := func(typed string, asked func(), args ...string) answer {
		t.Helper()
		if _, err := keyboard.WriteString(typed); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		errs := question{asked: asked}
		for _, set := range s.settings {
			args = append(args, "--set", set)
		}
		app := cli.App{Stores: adapters.Stores(), Transports: adapters.Transports()}
		code := app.Run(ctx, args, cli.IO{In: tty, Out: &out, Err: &errs})
		return answer{code, out.String(), errs.String()}
	}
	purge := []string{"purge", "--reason", "rejected"}
	answered := func() {}
	for _, no := range []string{"n\n", "\n", "yess\n"} {
		ask(no, answered, purge...).is(t, cli.ExitRefused, "delete 1 record for good? [y/N]", "not confirmed: nothing was changed")
	}
	s.run("show", "a1").is(t, cli.ExitOK)
	ask("Yes\n", answered, purge...).is(t, cli.ExitOK, "1 of 1 record deleted")

	// a signal ends the question
	ask("", cancel, "inbox", "purge", "--older", "1h").is(t, cli.ExitRefused, "not confirmed")
	if _, err := keyboard.WriteString("\n"); err != nil { // lets the reader go
		t.Fatal(err)
	}
}
