package dashboard

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
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

// FuzzSeal reads anything that a browser sends as an action that a preview has shown, and as the seal of it. Only the
// seal that this process made of that action, for that session, is one.
func FuzzSeal(f *testing.F) { // SE-08
	d := &Dashboard{}
	d.sessions.init()
	r := httptest.NewRequest(http.MethodPost, "http://localhost/do", nil)
	const shown = `{"Name":"redrive"}`
	own := d.seal(r, shown)
	f.Add(shown, own[1:])
	f.Add(`{"Name":"purge"}`, own)
	f.Add(shown+" ", own)
	f.Add("", "")
	f.Add("null", "")
	f.Fuzz(func(t *testing.T, sealed, seal string) {
		if sealed == shown && seal == own {
			return
		}
		r := httptest.NewRequest(http.MethodPost, "http://localhost/do", nil)
		r.PostForm = url.Values{"sealed": {sealed}, "seal": {seal}}
		var no *refused
		if err := d.do(httptest.NewRecorder(), r); !errors.As(err, &no) || no.status != http.StatusBadRequest {
			t.Errorf("%q with the seal %q: %v", sealed, seal, err)
		}
	})
}

// FuzzBody shows anything that a producer can send as a body. The shown text has a bound.
func FuzzBody(f *testing.F) { // SE-08
	d := &Dashboard{opts: Options{ShowBodies: true}}
	for _, text := range []string{"", "{}", "[[", `{"a":[1,{"b":"\u0000"}]}`, "\x1b[2J", "\xff\xfe", strings.Repeat("[", 99) + strings.Repeat("1,", 1000), strings.Repeat("ä", 1000)} {
		f.Add([]byte(text), uint16(1))
		f.Add([]byte(text), uint16(1000))
	}
	f.Fuzz(func(t *testing.T, text []byte, times uint16) {
		raw := bytes.Repeat(text, min(int(times), 1+(2*maxBody)/(len(text)+1)))
		b := d.show(&waybill.Envelope{Body: raw})
		if len(b.Text) > maxIndented+1 || !utf8.ValidString(b.Text) || b.Text == "" && b.Note == "" {
			t.Errorf("%d bytes of kind %q of a body with %d bytes", len(b.Text), b.Kind, len(raw))
		}
	})
}
