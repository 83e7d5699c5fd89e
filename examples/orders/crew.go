package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"
)

// crew is the processes of the demo: this program again, once a role. The crew starts a dead process again, as an
// orchestrator does.
type crew struct {
	cfg   config
	tally *tally

	mu      sync.Mutex
	members []*member
}

// member is one place in the crew, which several processes fill one after another.
type member struct {
	role     string
	cmd      *exec.Cmd // the process that fills it now
	stopping bool
	ended    chan struct{} // closed when nobody fills it any more
	err      error         // how the last one ended
}

func newCrew(cfg config, t *tally) *crew { return &crew{cfg: cfg, tally: t} }

// start adds a member and keeps its role filled until stop.
func (c *crew) start(role string) error {
	m := &member{role: role, ended: make(chan struct{})}
	if err := c.spawn(m); err != nil {
		return err
	}
	c.mu.Lock()
	c.members = append(c.members, m)
	c.mu.Unlock()
	return nil
}

func (c *crew) spawn(m *member) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, m.role) //nolint:noctx // this program itself; it ends by signals
	cmd.Env = append(os.Environ(), c.cfg.env()...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the %s: %w", m.role, err)
	}
	c.mu.Lock()
	if m.cmd = cmd; m.stopping { // it was asked to stop while its successor started
		_ = cmd.Process.Signal(os.Interrupt)
	}
	c.mu.Unlock()
	go func() {
		c.tally.read(out)
		c.replace(m, cmd.Wait())
	}()
	return nil
}

// replace fills a place again after its process ended with err, unless it is to stay empty.
func (c *crew) replace(m *member, err error) {
	c.mu.Lock()
	m.err = err
	stopping := m.stopping
	c.mu.Unlock()
	if !stopping {
		time.Sleep(100 * time.Millisecond) // as an orchestrator backs off
		if err := c.spawn(m); err == nil {
			return
		}
	}
	close(m.ended)
}

// kill sends SIGKILL to a process of role: no goodbye, leases and all.
func (c *crew) kill(role string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, m := range c.members {
		if m.role != role || m.stopping {
			continue
		}
		if m.cmd.Process.Kill() == nil {
			c.tally.kills.Add(1)
		}
		c.members = append(append(c.members[:i:i], c.members[i+1:]...), m) // the other one next time
		return
	}
}

// stop ends the processes of role (all if empty) with SIGTERM and waits for them.
func (c *crew) stop(role string) error {
	c.mu.Lock()
	var leaving []*member
	for _, m := range c.members {
		if (role == "" || m.role == role) && !m.stopping {
			m.stopping = true
			leaving = append(leaving, m)
			_ = m.cmd.Process.Signal(os.Interrupt) // it may have ended just now
		}
	}
	c.mu.Unlock()
	var errs []error
	for _, m := range leaving {
		select {
		case <-m.ended:
		case <-time.After(30 * time.Second):
			_ = m.cmd.Process.Kill()
			<-m.ended
			errs = append(errs, fmt.Errorf("the %s did not stop within 30 s of SIGINT", m.role))
		}
		if m.err != nil {
			errs = append(errs, fmt.Errorf("the %s ended: %w", m.role, m.err))
		}
	}
	return errors.Join(errs...)
}

func (c *crew) stopAll() error { return c.stop("") }
