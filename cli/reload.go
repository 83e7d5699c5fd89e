package cli

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli/config"
)

// hangups returns a channel that receives each SIGHUP from now on, until stop is called.
func hangups() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}

// secretsEvery is how often the files of secrets are looked at.
const secretsEvery = time.Second

// watch reads the settings again at each signal, and secrets when the file of one has changed, until ctx ends.
func (d *daemon) watch(ctx context.Context, signals <-chan os.Signal) error {
	look := time.NewTicker(secretsEvery)
	defer look.Stop()
	seen := d.secrets.stamps()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
			d.reload()
			seen = d.secrets.stamps()
		case <-look.C:
			if now := d.secrets.stamps(); !slices.Equal(now, seen) {
				seen = now
				d.log.Info("the file of a secret has changed", "event", "daemon.secret_changed")
				d.takeSecrets(d.secrets)
			}
		}
	}
}

// changeable are the settings that a running daemon takes over.
var changeable = regexp.MustCompile(`^(log\.level|relays\.[^.]+\.routes\[\d+\]\.paused)$`)

// reload takes over the settings that may change. It names the others that changed: they need a restart, and the old
// values stay.
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
		if !changeable.MatchString(path) && !d.rekeys(path, fresh) && (d.page == nil || !strings.HasPrefix(path, "dashboard.users.")) {
			restart = append(restart, path)
		}
	}
	if len(restart) > 0 {
		d.log.Warn("these settings need a restart; the old ones stay", "event", "daemon.restart_needed", "settings", strings.Join(restart, ", "))
	}
	d.takeSecrets(fresh) // before the line below: whoever reads it may rely on it that a user is out
	d.log.Info("settings were read again", "event", "daemon.reload")
	setLevel(d.level, fresh.Log)
	d.pause(fresh)
}

// takeSecrets takes over the users of the dashboard, and the keys of routes. A setting with a fault keeps its old
// value.
func (d *daemon) takeSecrets(conf *loaded) {
	d.secrets = conf
	refuse := func(problem string) {
		d.log.Error("a secret is wrong; the old one stays", "event", "daemon.reload_refused", "error", problem)
	}
	d.rekey(conf, func(path, text string) { refuse(conf.from.Problem(path, "%s", text)) })
	if d.page == nil {
		return
	}
	users, err := conf.users()
	if err == nil {
		err = d.page.SetUsers(users)
	}
	if err != nil {
		refuse(err.Error())
	}
}

// stamps tell whether a file of a secret has changed that the daemon reads but once.
func (l *loaded) stamps() (out []string) {
	for _, name := range sortedKeys(l.Dashboard.Users) {
		out = append(out, l.Dashboard.Users[name].Password.Stamp())
	}
	for _, name := range sortedKeys(l.Relays) {
		for i := range l.Relays[name].Routes {
			r := &l.Relays[name].Routes[i]
			out = append(out, r.Encrypt.Key.Stamp(), r.Sign.Secret.Stamp(), r.Sign.PrivateKey.Stamp())
		}
	}
	return out
}

// pause pauses and resumes the routes of running relays as the settings say. A relay without a list of routes serves
// the default one.
func (d *daemon) pause(conf *loaded) {
	for name, r := range d.fleet.relays {
		set, ok := conf.Relays[name]
		if ok && len(set.Routes) == 0 {
			set.Routes = []routeSettings{{}}
		}
		for _, rt := range set.Routes {
			route := rt.Name
			route = cmp.Or(route, waybill.DefaultRoute)
			change := r.Resume
			if rt.Paused {
				change = r.Pause
			}
			if err := change(route); err != nil {
				d.log.Warn("this route needs a restart", "event", "daemon.restart_needed", "relay", name, "route", route, "error", err)
			}
		}
	}
}
