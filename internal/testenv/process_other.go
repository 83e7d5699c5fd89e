//go:build !linux

package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"
)

// Only Linux ends children with their parent. Elsewhere tests use the servers that the environment variables name.

type signal int

const (
	sigKill signal = iota
	sigInt
	sigTerm
	sigHup
	sigStop
	sigCont
)

type account struct{}

func (*account) own(string) error { return nil }
func (a *account) here() *account { return a }

type process struct{ done chan struct{} }

func unprivileged(...string) (*account, error) { return nil, errNotHere() }

func brokerIn(string) *account { return nil }

func accountIn(string, string) (*account, error) { return nil, errNotHere() }

func start(*account, string, string, []string, string, ...string) (*process, error) {
	return nil, errNotHere()
}

func startOnOneCPU(*account, string, string, []string, string, ...string) (*process, error) {
	return nil, errNotHere()
}

func run(context.Context, *account, string, []string, string, ...string) error { return errNotHere() }

func (*process) ended() bool                { return true }
func (*process) signal(signal)              {}
func (*process) signalAll(signal)           {}
func (*process) kill()                      {}
func (*process) stop(signal, time.Duration) {}

type unreserved struct{ net.Listener }

func (unreserved) Close() error { return nil }

func reserve(int) (net.Listener, bool) { return unreserved{}, true }

func stopListening(l net.Listener) { _ = l.Close() }

func left(string) uint64 { return 0 }

func alive(pid int) bool { _, err := os.FindProcess(pid); return err == nil }

func background(fn func()) { fn() }

func startGuard(string) (*os.File, error) { return nil, nil } // nothing to guard

func removeSharedMemory(string) {}

func errNotHere() error {
	return fmt.Errorf("waybill/testenv: %w: private servers need Linux, this is %s: set the WAYBILL_TEST_ variables", ErrUnavailable, runtime.GOOS)
}
