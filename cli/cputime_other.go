//go:build !linux

package cli

import "time"

// cpuTime is 0 where it is unknown.
func cpuTime() time.Duration { return 0 }
