package cli

import (
	"context"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli/config"
)

// hangups returns what receives each SIGHUP from now on, until stop is called.
func hangups() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}

// watch reads the settings again at each signal, until ctx ends.
func (d *daemon) watch(ctx context.Context, signals <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
			d.reload()
		}
	}
}

// changeable are the settings that a running daemon takes over.
var changeable = regexp.MustCompile(`^(log\.level|relays\.[^.]+\.routes\[\d+\]\.paused)$`)

// reload takes over what may change. For the rest it says what needs a restart; the old settings stay.
func (d *daemon) reload() {
	fresh, err := d.c.app.load(d.c.sources())
	if err != nil {
		problems := []string{err.Error()}
		if e, ok := asInvalid(err); ok {
			problems = e.Problems
		}
		for _, p := range problems {
			d.log.Error("the settings are wrong; the old ones stay", "event", "daemon.reload_refused", "error", p)
		}
		return
	}
	var restart []string
	for _, path := range config.Diff(d.conf.from, fresh.from) {
		if !changeable.MatchString(path) {
			restart = append(restart, path)
		}
	}
	if len(restart) > 0 {
		d.log.Warn("these settings need a restart; the old ones stay", "event", "daemon.restart_needed", "settings", strings.Join(restart, ", "))
	}
	d.log.Info("settings were read again", "event", "daemon.reload")
	setLevel(d.level, fresh.Log)
	d.pause(fresh)
}

// pause pauses and resumes the routes of running relays as the settings say.
func (d *daemon) pause(conf *loaded) {
	for name, r := range d.fleet.relays {
		for _, rt := range conf.Relays[name].Routes {
			route := rt.Name
			if route == "" {
				route = waybill.DefaultRoute
			}
			change := r.Resume
			if rt.Paused {
				change = r.Pause
			}
			_ = change(route) // one that this relay does not serve needs a restart, which was said
		}
	}
}
