package dashboard

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// FuzzCookie reads anything that a browser sends as the cookie of a session. Only the values that this process made are
// one, and a value that was changed is none.
func FuzzCookie(f *testing.F) { // SE-08
	d := &Dashboard{}
	d.sessions.init()
	d.people.Store(newPeople(nil))
	d.sessions.passwordOf = d.passwordOf
	var other sessions
	other.init()
	r := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
	own := d.cookie(r, guest).Value
	f.Add(own)
	f.Add("")
	f.Add("....")
	f.Add("K2FkYQ.zzzzzz.x." + own[len(own)-43:])
	f.Fuzz(func(t *testing.T, value string) {
		if s, ok := d.sessions.of(value); ok && (value != own || s.in) {
			t.Errorf("%q is a session of %q", value, s.user)
		}
		other.end(value)
	})
}
