package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func (s *PostgresServer) clock() string { return filepath.Join(s.dir, "clock") }

// fakeTime returns the library that gives a process a clock of its own.
func fakeTime() (string, error) {
	found, _ := filepath.Glob(serversRoot() + "/usr/lib/*/faketime/libfaketime.so.1") // the pattern is valid
	if len(found) == 0 {
		return "", fmt.Errorf("%w: no libfaketime: run scripts/servers, which installs it", ErrUnavailable)
	}
	return strings.TrimPrefix(found[0], serversRoot()), nil
}

// SetClock sets how far the clock of a server with Options.Clock is ahead of the true time. The server notices within a
// second. Its monotonic clock stays right.
func (s *PostgresServer) SetClock(ahead time.Duration) error {
	text := fmt.Sprintf("%+d", int(ahead.Seconds()))
	if err := os.WriteFile(s.clock()+".new", []byte(text), 0o644); err != nil {
		return fmt.Errorf("waybill/testenv: postgres: clock: %w", err)
	}
	if err := os.Rename(s.clock()+".new", s.clock()); err != nil {
		return fmt.Errorf("waybill/testenv: postgres: clock: %w", err)
	}
	return nil
}
