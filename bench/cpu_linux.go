package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpuTimes is the CPU time that processes have used so far, or between two readings. Redis and Kafka count as
// rabbitmq.
type cpuTimes struct{ self, postgres, rabbitmq time.Duration }

func (c cpuTimes) total() time.Duration { return c.self + c.postgres + c.rabbitmq }

func (c cpuTimes) since(before cpuTimes) cpuTimes {
	return cpuTimes{c.self - before.self, c.postgres - before.postgres, c.rabbitmq - before.rabbitmq}
}

// readCPU reads this process and the servers, which are its children. A Postgres server's ended backends are in the
// postmaster's account of waited-for children.
func readCPU() cpuTimes {
	var c cpuTimes
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) == nil {
		c.self = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
	me := os.Getpid()
	postmaster := -1
	all := processes()
	for _, p := range all {
		if p.parent != me {
			continue
		}
		switch {
		case p.name == "postgres":
			postmaster = p.pid
			c.postgres += p.used + p.children
		case strings.HasPrefix(p.name, "beam"), p.name == "redis-server", p.name == "java":
			c.rabbitmq += p.used
		}
	}
	for _, p := range all {
		if p.parent == postmaster {
			c.postgres += p.used
		}
	}
	return c
}

type process struct {
	pid, parent    int
	name           string
	used, children time.Duration
}

const tick = time.Second / 100 // USER_HZ

func processes() []process {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	var out []process
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		s := string(b)
		open, closing := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
		if open < 0 || closing < open {
			continue
		}
		f := strings.Fields(s[closing+1:])
		if len(f) < 15 {
			continue
		}
		num := func(i int) int { n, _ := strconv.Atoi(f[i]); return n }
		pid, _ := strconv.Atoi(strings.TrimSpace(s[:open]))
		out = append(out, process{
			pid: pid, parent: num(1), name: s[open+1 : closing],
			used: time.Duration(num(11)+num(12)) * tick, children: time.Duration(num(13)+num(14)) * tick,
		})
	}
	return out
}
