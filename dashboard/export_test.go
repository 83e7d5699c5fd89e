package dashboard

import "math"

// Unhurried gives d all the time it needs, so that a page does not depend on the speed of the database.
func (d *Dashboard) Unhurried() {
	d.timeouts = timeouts{search: math.MaxInt64, inspect: math.MaxInt64, look: math.MaxInt64}
}

// Compare holds every turn to compare a password until release is called.
func (d *Dashboard) Compare() (release func()) {
	for range maxComparing {
		d.passwords.comparing <- struct{}{}
	}
	d.passwords.queued.Add(maxComparing)
	return func() {
		for range maxComparing {
			<-d.passwords.comparing
		}
		d.passwords.queued.Add(-maxComparing)
	}
}

// Braked returns how many counts of wrong passwords are kept.
func (d *Dashboard) Braked() int {
	d.brakes.mu.Lock()
	defer d.brakes.mu.Unlock()
	return len(d.brakes.of)
}

// Guess counts a wrong password.
func (d *Dashboard) Guess(user, client string) { d.brakes.try(user, client) }

// EndSession ends the session of a cookie.
func (d *Dashboard) EndSession(cookie string) { d.sessions.end(cookie) }

// The bounds.
const (
	MaxBraked = maxBrakes
	MaxEnded  = maxEnded
	MaxQueued = maxQueued
)
