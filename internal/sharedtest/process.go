package sharedtest

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/waybill-go/waybill/core"
)

// Process is the test binary, started once more as a program of its own. It gets a pipe as its standard input, which
// ends with the process that started it. Its methods are safe for concurrent use.
type Process struct {
	// PID is the id of the process.
	PID int
	// Log is what it writes to its standard error.
	Log Log
	// Done is closed when it has ended.
	Done chan struct{}

	cmd *exec.Cmd
}

// StartProcess starts the test binary with more variables in its environment. It is killed at the end of the test; a
// test that failed logs what it wrote.
func StartProcess(tb testing.TB, env ...string) *Process {
	tb.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), os.Args[0]) //nolint:gosec // the binary of the test
	p := &Process{Done: make(chan struct{}), cmd: cmd}
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), &p.Log
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		tb.Fatal(err)
	}
	p.PID = cmd.Process.Pid
	go func() {
		_ = cmd.Wait()
		close(p.Done)
	}()
	tb.Cleanup(func() {
		p.Kill()
		_ = stdin.Close()
		if tb.Failed() {
			tb.Logf("process %d wrote:\n%s", p.PID, p.Log.String())
		}
	})
	return p
}

// Signal sends a signal. It does nothing if the process has ended.
func (p *Process) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends the process as a crash does, and waits for its end.
func (p *Process) Kill() {
	p.Signal(os.Kill)
	<-p.Done
}

// AwaitParent returns when the process that started this one with [StartProcess] has ended.
func AwaitParent() { _, _ = io.Copy(io.Discard, os.Stdin) }

// KeyOfEach returns keys of a route, one in each of its partitions: a relay that has partitions has work.
func KeyOfEach(route string, partitions int) []string {
	keys := make([]string, partitions)
	for i, left := 0, partitions; left > 0; i++ {
		key := "key" + strconv.Itoa(i)
		if at := int(core.SlotOf(route, key, "")) * partitions / core.NumSlots; keys[at] == "" {
			keys[at] = key
			left--
		}
	}
	return keys
}
