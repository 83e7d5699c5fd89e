package sharedtest

import (
	"context"
	"io"
	"os"
	"os/exec"
	"testing"
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

// StartProcess starts the test binary with more variables in its environment. It is killed at the end of the test.
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
